#!/usr/bin/env bash
# Makes a compiler for a release: GCC 12 of this machine over the C library of Debian 11 (glibc 2.31), with libstdc++ linked
# statically. A program built with it runs wherever glibc is 2.31 or newer; the code is that of the tested compiler.
#   tools/release/compiler/sysroot.sh amd64|arm64 FOLDER     FOLDER/bin/c++ is the compiler, FOLDER/root the sysroot
set -euo pipefail
arch=$1
folder=$(mkdir -p "$2" && cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
case $arch in
    amd64) triple=x86_64-linux-gnu ;;
    arm64) triple=aarch64-linux-gnu ;;
    *) echo "sysroot: architecture must be amd64 or arm64, got $arch" >&2; exit 2 ;;
esac
gcc=$(command -v "$triple-g++-12") || { echo "sysroot: $triple-g++-12 is missing (Debian 12: g++-12, g++-12-aarch64-linux-gnu)" >&2; exit 1; }

if [ ! -e "$folder/root/.complete" ]; then
    "$here/../packages.sh" "$arch" "$folder/root"
    # Links with absolute targets would lead to the C library of this machine.
    find "$folder/root" -type l -lname '/*' | while read -r link; do
        ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$folder/root$(readlink "$link")")" "$link"
    done
fi

# GCC looks for the headers of libstdc++ inside a sysroot, which has none: they are named. Cross compilers keep them elsewhere, and
# with --sysroot still read the C library's headers of this machine (/usr/aarch64-linux-gnu/include): all folders are named for them.
# GCC also looks for libraries beside itself before it looks into the sysroot: -B and -L put the sysroot first.
headers=/usr/include/c++/12
c_headers=
if [ "$arch" = amd64 ]; then
    target=/usr/include/$triple/c++/12
else
    headers=/usr/$triple/include/c++/12
    target=$headers/$triple
    c_headers="-nostdinc -isystem $("$gcc" -print-file-name=include) -isystem $folder/root/usr/include/$triple -isystem $folder/root/usr/include"
fi
mkdir -p "$folder/bin"
cat >"$folder/bin/c++" <<END
#!/bin/sh
exec $gcc --sysroot=$folder/root -B$folder/root/usr/lib/$triple/ -L$folder/root/usr/lib/$triple -L$folder/root/lib/$triple -nostdinc++ -isystem $headers -isystem $target -isystem $headers/backward $c_headers -static-libstdc++ "\$@" -L$folder/lib -Wl,-u,__libc_single_threaded -Wl,-u,arc4random -lnewer_libc
END
chmod +x "$folder/bin/c++"
mkdir -p "$folder/lib"
"${gcc/g++/gcc}" --sysroot="$folder/root" -O2 -fPIC -fstack-protector-strong -c "$here/newer_libc.c" -o "$folder/lib/newer_libc.o"
ar rcD "$folder/lib/libnewer_libc.a" "$folder/lib/newer_libc.o"
