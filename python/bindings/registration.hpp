/// The functions with which each file adds its classes to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace tokenyard::python {

class JobHandle;

void register_errors(nanobind::module_& m);
void register_topology(nanobind::module_& m);
void register_world(nanobind::module_& m);
void register_arena_lending(nanobind::module_& m);
void register_received(nanobind::module_& m);
void register_expert_parallel(nanobind::module_& m);
void register_low_latency(nanobind::module_& m);
/// Returns the class, to which the others add what stands on a job.
nanobind::class_<JobHandle> register_job(nanobind::module_& m);
void register_collectives(nanobind::module_& m, nanobind::class_<JobHandle>& job);
void register_group(nanobind::module_& m);
void register_device_collectives(nanobind::module_& m);
void register_core_table(nanobind::module_& m);
void register_store_server(nanobind::module_& m);
void register_megakernel(nanobind::module_& m);
void register_dense_decoder(nanobind::module_& m);
void register_doctor(nanobind::module_& m);

}  // namespace tokenyard::python
