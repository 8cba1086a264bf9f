/// Secrets in files of one user. None of the errors shows a secret.
#pragma once

#include <string>
#include <string_view>

namespace tokenyard::control {

/// Returns the secret that all processes of this user on this host share, for jobs that are given
/// no other and run on one host. The first process to ask draws it. It is kept in a file that this
/// user alone may read: `tokenyard/secret` in XDG_RUNTIME_DIR if that is set, else
/// `/tmp/tokenyard-UID/secret`. Throws InvalidArgument if somebody else might read or have written
/// it, OsError if it cannot be read or made.
std::string host_secret();

/// Returns the text without surrounding white space. Throws InvalidArgument{argument} if it has
/// fewer than 16 bytes or more than 4096.
std::string checked_secret(const std::string& argument, std::string_view text);

/// Returns the secret in a file, likewise. Throws InvalidArgument{argument} also if neither this
/// user nor root owns the file, or somebody else may read it; OsError if it cannot be read.
std::string secret_in_file(const std::string& argument, const std::string& path);

}  // namespace tokenyard::control
