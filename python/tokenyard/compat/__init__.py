"""Code shared by the packages that offer another library's calls on top of Tokenyard.

Those packages are separate distributions: tokenyard-deep-ep and tokenyard-mooncake.
"""
