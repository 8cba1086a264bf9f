/// The functions with which each file adds its classes to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace tokenyard::python {

void register_errors(nanobind::module_& m);
void register_topology(nanobind::module_& m);
void register_world(nanobind::module_& m);
void register_arena_lending(nanobind::module_& m);
void register_received(nanobind::module_& m);
void register_expert_parallel(nanobind::module_& m);
void register_low_latency(nanobind::module_& m);
void register_collectives(nanobind::module_& m);
void register_group(nanobind::module_& m);
void register_core_table(nanobind::module_& m);
void register_store_server(nanobind::module_& m);
void register_megakernel(nanobind::module_& m);
void register_dense_decoder(nanobind::module_& m);
void register_doctor(nanobind::module_& m);

}  // namespace tokenyard::python
