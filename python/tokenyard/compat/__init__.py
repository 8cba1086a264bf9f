"""What packages that speak another library's calls over Tokenyard have in common.

The packages themselves are distributions of their own: tokenyard-deep-ep, tokenyard-mooncake.
"""
