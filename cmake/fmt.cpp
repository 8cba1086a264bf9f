// The body of fmt, compiled once: Debian has fmt as a shared library, which machines that programs
// are carried to lack, or as headers that every file would compile anew.
#define FMT_HEADER_ONLY
#include <fmt/format.h>

#include <cstdio>
#include <locale>

template std::locale fmt::detail::locale_ref::get<std::locale>() const;

namespace tokenyard {

// Addresses keep these functions, and those that they call (-fno-inline), in the object.
extern std::string (*const kFmtFormat)(fmt::string_view, fmt::format_args);
extern void (*const kFmtPrint)(fmt::string_view, fmt::format_args);
extern void (*const kFmtPrintTo)(std::FILE*, fmt::string_view, fmt::format_args);

std::string (*const kFmtFormat)(fmt::string_view, fmt::format_args) = fmt::vformat;
void (*const kFmtPrint)(fmt::string_view, fmt::format_args) = fmt::vprint;
void (*const kFmtPrintTo)(std::FILE*, fmt::string_view, fmt::format_args) = fmt::vprint;

}  // namespace tokenyard
