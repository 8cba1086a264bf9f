// The code of docs/megakernel.md, "write your first task": what the page shows is what runs here.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

// [docs]
#include "tokenyard/megakernel/task.hpp"

namespace mk = tokenyard::megakernel;

/// to[i] = factor * from[i], by all threads of a block.
struct Scale {
  static constexpr const char* kName = "scale";
  struct Args {
    const float* from;
    float* to;
    uint32_t count;
    float factor;
  };
  static void touches(mk::Touches& touches, const Args& args) {
    touches.reads("from", args.from, args.count);
    touches.writes("to", args.to, args.count);
  }
  static TOKENYARD_DEVICE void run(mk::Context& context, const Args& args) {
    for (uint32_t i = context.thread(); i < args.count; i += context.threads())
      args.to[i] = args.factor * args.from[i];
  }
};

using MyTasks = mk::TaskList<Scale>;
TOKENYARD_DEFINE_HOST_MEGAKERNEL(my_kernel, MyTasks)

/// Two tasks, the second on what the first has made: 6 times x.
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
// [docs]

namespace {

TEST(FirstTask, DoesWhatThePageSays) {
  const auto worlds = tokenyard::World::in_process(1, "host");
  EXPECT_EQ(six_times(*worlds[0], {1, 2, 3}), (std::vector<float>{6, 12, 18}));
}

std::string text_of(const std::filesystem::path& path) {
  const std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(FirstTask, IsWhatThePageShows) {
  const std::filesystem::path root(TOKENYARD_ROOT);
  const std::string source = text_of(root / "tests" / "megakernel" / "first_task_test.cpp");
  const std::string mark = "// [docs]\n";
  const size_t begin = source.find(mark) + mark.size();
  const std::string code = source.substr(begin, source.find(mark, begin) - begin);
  const std::string page = text_of(root / "docs" / "megakernel.md");
  EXPECT_NE(page.find("```cpp\n" + code + "```\n"), std::string::npos)
      << "docs/megakernel.md should show this:\n"
      << code;
}

}  // namespace
