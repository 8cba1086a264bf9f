/// A diagnosis as text for people and as JSON for programs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/json_text.hpp"
#include "tokenyard/doctor.hpp"
#include "tokenyard/version.hpp"

namespace tokenyard {

namespace {

/// Returns a JSON array of one line per element; `of` returns an element's JSON.
template <class T, class Of>
std::string array_of(const std::vector<T>& elements, Of of) {
  std::vector<std::string> lines;
  std::transform(elements.begin(), elements.end(), std::back_inserter(lines),
                 [&](const T& element) { return "\n    " + of(element); });
  return lines.empty() ? "[]" : fmt::format("[{}\n  ]", fmt::join(lines, ","));
}

std::string json_of(const GpuFacts& gpu) {
  std::vector<std::string> links;
  std::transform(gpu.links.begin(), gpu.links.end(), std::back_inserter(links), json_text);
  return fmt::format(R"({{"index": {}, "cuda_index": {}, "name": {}, "uuid": {}, "domain": {}, )"
                     R"("memory_bytes": {}, )"
                     R"("links": [{}], "link_bytes_per_second": {:.0f}}})",
                     gpu.index, gpu.cuda_index, json_text(gpu.name), json_text(gpu.uuid),
                     json_text(gpu.domain), gpu.memory_bytes, fmt::join(links, ", "),
                     gpu.link_bytes_per_second);
}

std::string json_of(const FabricFacts& fabric) {
  return fmt::format(R"({{"name": {}, "works": {}, "why": {}, "remedy": {}}})",
                     json_text(fabric.name), fabric.works, json_text(fabric.why),
                     json_text(fabric.remedy));
}

std::string json_of(const SelfTest& test) {
  return fmt::format(
      R"({{"device": {}, "ranks": {}, "how": {}, "dispatch_bytes_per_second": {:.0f}, )"
      R"("combine_bytes_per_second": {:.0f}, "link_bytes_per_second": {:.0f}, )"
      R"("link_share": {:.3f}, "error": {}, "remedy": {}}})",
      json_text(test.device), test.ranks, json_text(test.how), test.dispatch_bytes_per_second,
      test.combine_bytes_per_second, test.link_bytes_per_second, test.link_share(),
      json_text(test.error), json_text(test.remedy));
}

std::string line_of(const SelfTest& test) {
  if (!test.error.empty())
    return fmt::format("  no  {} x {}: {}\n", test.ranks, test.device, test.error);
  std::string line = fmt::format(
      "  yes {} x {} ({}): each rank received {:.3g} GB/s by dispatch, {:.3g} GB/s by combine",
      test.ranks, test.device, test.how, test.dispatch_bytes_per_second * 1e-9,
      test.combine_bytes_per_second * 1e-9);
  if (test.link_bytes_per_second > 0)
    line += fmt::format(": {:.0f} % of the link's {:.0f} GB/s", 100 * test.link_share(),
                        test.link_bytes_per_second * 1e-9);
  return line + '\n';
}

}  // namespace

double SelfTest::link_share() const {
  if (link_bytes_per_second <= 0) return 0;
  return std::max(dispatch_bytes_per_second, combine_bytes_per_second) / link_bytes_per_second;
}

std::string Diagnosis::text() const {
  std::string report = fmt::format("system        {}\nCUDA toolkit  {}\nNVIDIA driver {}\n", system,
                                   toolkit, driver);
  for (const GpuFacts& gpu : gpus) {
    report += fmt::format("GPU {:<9} {} {:.0f} GiB, {}; links: {}{}{}\n", gpu.index, gpu.name,
                          static_cast<double>(gpu.memory_bytes) / (uint64_t{1} << 30), gpu.uuid,
                          fmt::join(gpu.links, " "),
                          gpu.domain.empty() ? "" : "; NVLink domain " + gpu.domain,
                          gpu.cuda_index < 0 ? "; hidden from this process" : "");
  }
  report += "\nfabrics\n";
  std::string remedies;
  for (const FabricFacts& fabric : fabrics) {
    report +=
        fmt::format("  {:<3} {:<16} {}\n", fabric.works ? "yes" : "no", fabric.name, fabric.why);
    if (!fabric.remedy.empty())
      remedies += fmt::format("  {:<20} {}\n", fabric.name, fabric.remedy);
  }
  if (!self_tests.empty()) report += "\nself-test: dispatch and combine\n";
  for (const SelfTest& test : self_tests) {
    report += line_of(test);
    if (!test.remedy.empty())
      remedies += fmt::format("  {:<20} {}\n", "self-test, " + test.device, test.remedy);
  }
  report += "\nwhat to do\n" + (remedies.empty() ? "  nothing: all of it works\n" : remedies);
  return report;
}

std::string Diagnosis::json() const {
  const auto of = [](const auto& element) { return json_of(element); };
  return fmt::format(
      "{{\n  \"version\": {},\n  \"system\": {},\n  \"toolkit\": {},\n  \"driver\": {},\n  "
      "\"gpus\": {},\n  \"fabrics\": {},\n  \"self_tests\": {}\n}}\n",
      json_text(TOKENYARD_VERSION_STRING), json_text(system), json_text(toolkit), json_text(driver),
      array_of(gpus, of), array_of(fabrics, of), array_of(self_tests, of));
}

}  // namespace tokenyard
