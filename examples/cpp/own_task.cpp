/// A megakernel of two tasks of the type `Scale` (scale.hpp): the second waits for the first.
#include <cstdio>
#include <cstring>
#include <vector>

#include "scale.hpp"

namespace {

namespace mk = tokenyard::megakernel;

/// Returns 6 * x, by doubling and tripling it.
std::vector<float> six_times(tokenyard::World& world, const std::vector<float>& x) {
  const size_t bytes = x.size() * sizeof(float);
  mk::TensorMemory memory(world);
  const tokenyard::TensorView in = memory.local(bytes);
  const tokenyard::TensorView half_way = memory.local(bytes);
  const tokenyard::TensorView out = memory.local(bytes);
  memory.write(in, tokenyard::ConstTensorView::of(std::span(x)));

  mk::Graph graph(mk::task_set<MyTasks>(my_kernel.entry), {.rank = 0, .ranks = 1});
  const mk::Tensor given =
      graph.tensor({.name = "in", .bytes = bytes, .given = mk::Given::always, .places = {in}});
  const mk::Tensor doubled =
      graph.tensor({.name = "half way", .bytes = bytes, .places = {half_way}});
  const mk::Tensor result = graph.tensor({.name = "out", .bytes = bytes, .places = {out}});
  const mk::Event ready = graph.event({.name = "doubled"});
  const auto count = static_cast<uint32_t>(x.size());
  graph.add<Scale>(
      {in.as<float>(), half_way.as<float>(), count, 2},
      {.name = "double", .reads = {given.all()}, .writes = {doubled.all()}, .signals = {{ready}}});
  graph.add<Scale>(
      {half_way.as<float>(), out.as<float>(), count, 3},
      {.name = "triple", .reads = {doubled.all()}, .writes = {result.all()}, .waits = {{ready}}});
  graph.once();

  mk::Megakernel kernel(world, graph, {.workers = 2});
  kernel.run(1);
  std::vector<float> values(x.size());
  memory.read(tokenyard::TensorView::of(std::span(values)), out);
  return values;
}

}  // namespace

int main(int arguments, char** argument) {
  const char* const device = arguments > 1 ? argument[1] : "host";
  if (std::strcmp(device, "host") != 0 && std::strcmp(device, "cuda") != 0) {
    const bool asked = std::strcmp(device, "--help") == 0;
    std::fprintf(
        asked ? stdout : stderr,
        "usage: %s [host | cuda]\nRuns a megakernel of two tasks, and checks its result.\n",
        argument[0]);
    if (!asked) std::fprintf(stderr, "unknown device %s\n", device);
    return asked ? 0 : 2;
  }
  try {
    const auto worlds = tokenyard::World::in_process(1, device);
    const std::vector<float> values = six_times(*worlds[0], {1, 2, 3});
    std::printf("6 * (1, 2, 3) = (%g, %g, %g) on %s\n", values[0], values[1], values[2], device);
    return values == std::vector<float>{6, 12, 18} ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
