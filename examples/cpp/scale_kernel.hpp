/// The kernel that runs the tasks of scale.hpp; `tokenyard_add_kernel` compiles it for the host,
/// and for GPUs where the library has a GPU side.
#include "scale.hpp"

TOKENYARD_DEFINE_MEGAKERNEL(my_kernel, MyTasks)
