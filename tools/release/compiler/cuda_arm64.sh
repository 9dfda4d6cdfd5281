#!/usr/bin/env bash
# Makes a CUDA toolkit that compiles for aarch64: nvcc and headers of this machine's toolkit, the runtime of NVIDIA's wheel for aarch64.
#   tools/release/compiler/cuda_arm64.sh RUNTIME FOLDER     RUNTIME: the folder `lib` of the wheel; FOLDER/bin/nvcc is the compiler
# For a host compiler for aarch64, nvcc looks into targets/aarch64-linux beside itself. It goes by its own place, so it is copied.
set -euo pipefail
runtime=$(cd "$1" && pwd)
folder=$2
toolkit=$(nvcc --dryrun -x cu -c /dev/null -o /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
toolkit=$(realpath "${toolkit:?cuda_arm64: nvcc is missing}")
target=$folder/targets/aarch64-linux
rm -rf "$folder" && mkdir -p "$folder/bin" "$target/lib"
ln -s "$toolkit"/bin/* "$folder/bin"
rm "$folder/bin/nvcc" && cp "$toolkit/bin/nvcc" "$folder/bin"
ln -s "$toolkit/nvvm" "$folder/nvvm"
ln -s "$toolkit/include" "$target/include"
ln -s "$runtime"/* "$target/lib"
ln -sf libcudart.so.13 "$target/lib/libcudart.so"  # CMake looks for it; nothing is linked with it
