/// How a task type lists its arguments for graphs that are not written in C++.
#pragma once

#include <cstddef>

#include "tokenyard/megakernel/task_set.hpp"
#include "tokenyard/megakernel/touches.hpp"

/// One entry of a kFields: FIELD(u32, rows). Inside the task type, after its Args.
#define TOKENYARD_FIELD(kind, name)                   \
  ::tokenyard::megakernel::ArgField {                 \
    #name, ArgField::Kind::kind, offsetof(Args, name) \
  }
