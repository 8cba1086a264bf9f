/// Secrets in files of one user. None of the errors shows a secret.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tokenyard::control {

/// Returns the secret that all processes of this user on this host share, for jobs that are given
/// no other and run on one host. The first process to ask draws it. It is kept in a file that this
/// user alone may read: `tokenyard/secret` in XDG_RUNTIME_DIR if that is a folder of this user,
/// else `/tmp/tokenyard-UID/secret`. Throws InvalidArgument if somebody else might read or have
/// written it, OsError if it cannot be read or made.
std::string host_secret();

/// Returns the text without surrounding white space. Throws InvalidArgument{argument} if it has
/// fewer than 16 bytes or more than 4096; `place` says in the error where it was (" in FILE").
std::string checked_secret(const std::string& argument, std::string_view text,
                           const std::string& place = "");

/// Returns the secret in a file, likewise. Throws InvalidArgument{argument} also if neither this
/// user nor root owns the file, or somebody else may read it; OsError if it cannot be read.
std::string secret_in_file(const std::string& argument, const std::string& path);

/// Returns the secret that TOKENYARD_SECRET_FILE or TOKENYARD_SECRET gives; nullopt if neither is
/// set. Throws as those above, and InvalidArgument if both are set and differ.
std::optional<std::string> secret_in_environment();

/// Returns `given` if it is not empty, else the environment's. Throws InvalidArgument if there is
/// neither.
std::string required_secret(const std::string& given);

}  // namespace tokenyard::control
