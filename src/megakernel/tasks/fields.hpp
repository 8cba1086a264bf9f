/// Lists a task type's arguments for graphs that are not built in C++.
#pragma once

#include <cstddef>

#include "tokenyard/megakernel/task_set.hpp"
#include "tokenyard/megakernel/touches.hpp"

/// One entry of a kFields: TOKENYARD_FIELD(u32, rows). Used inside the task type, after its Args.
#define TOKENYARD_FIELD(kind, name)                   \
  ::tokenyard::megakernel::ArgField {                 \
    #name, ArgField::Kind::kind, offsetof(Args, name) \
  }
