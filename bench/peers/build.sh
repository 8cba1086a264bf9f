#!/bin/bash
# Builds a peer from a checkout of its sources, on a machine with GPUs, torch and nvcc:
#
#   bench/peers/build.sh deep_ep_v1 CHECKOUT SITE   # DeepEP, tag v1.2.1
#   bench/peers/build.sh deep_ep_v2 CHECKOUT SITE   # DeepEP, main
#   bench/peers/build.sh hybrid_ep  CHECKOUT SITE   # DeepEP, branch hybrid-ep
#
# The second version needs NCCL 2.30.4 or later, the same that torch loads:
#
#   pip install --no-deps --target NCCL "nvidia-nccl-cu13>=2.30.4"
#   EP_NCCL_ROOT_DIR=NCCL/nvidia/nccl bench/peers/build.sh deep_ep_v2 ...
#   python bench/peers --nccl NCCL ...
#
# SITE becomes a folder for PYTHONPATH. Nothing is installed, and the checkout is not changed.
set -euo pipefail

peer=${1:?peer} checkout=$(realpath "${2:?checkout}") site=${3:?site}
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cp -r "$checkout/." "$tree"
mkdir -p "$site"
site=$(realpath "$site")
cd "$tree"

export TORCH_CUDA_ARCH_LIST=${TORCH_CUDA_ARCH_LIST:-9.0}
cuda=${CUDA_HOME:-/usr/local/cuda}
export CPLUS_INCLUDE_PATH=$cuda/include/cccl${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
# A toolchain that links libstdc++ statically breaks iostreams and std::regex in an extension, so
# the shared one is linked first.
shared=$(ls /usr/lib/x86_64-linux-gnu/libstdc++.so.6 2>/dev/null || true)
[ -n "$shared" ] && export LDFLAGS="-Wl,--no-as-needed $shared ${LDFLAGS:-}"

case $peer in
deep_ep_v1) ;;
deep_ep_v2)
  # Its submodule, or the installed fmt, which lacks base.h before fmt 11.
  if [ ! -e third-party/fmt/include/fmt ]; then
    mkdir -p third-party/fmt/include
    cp -r /usr/include/fmt third-party/fmt/include/
    [ -e third-party/fmt/include/fmt/base.h ] ||
      printf '#pragma once\n#include "core.h"\n' >third-party/fmt/include/fmt/base.h
  fi
  ;;
hybrid_ep)
  # Only its own extension: the other one is V1.
  sed -i '/^ *get_extension_deep_ep_cpp(),$/d' setup.py
  printf 'from .hybrid_ep_buffer import HybridEPBuffer\n' >deep_ep/__init__.py
  if [ ! -e "$cuda/lib64/libnvtx3interop.so" ]; then
    interop=$(find / -xdev -name 'libnvtx3interop.so*' -print -quit 2>/dev/null || true)
    if [ -n "$interop" ]; then
      mkdir -p interop
      ln -s "$interop" interop/libnvtx3interop.so
      export LIBRARY_PATH=$tree/interop
    fi
  fi
  ;;
*)
  echo "no peer is called $peer: deep_ep_v1, deep_ep_v2 or hybrid_ep" >&2
  exit 2
  ;;
esac

python3 setup.py build
cp -r build/lib*/. "$site"
# Copies what setup.py does not: sources that are compiled at a kernel's first call.
[ "$peer" = hybrid_ep ] && cp -r deep_ep/backend "$site/deep_ep/"
ls "$site"
