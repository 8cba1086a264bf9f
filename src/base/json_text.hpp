/// Texts in JSON.
#pragma once

#include <string>
#include <string_view>

namespace tokenyard {

/// Returns the text as a JSON string, in quotes. Bytes that are not ASCII pass as they are: UTF-8.
std::string json_text(std::string_view text);

}  // namespace tokenyard
