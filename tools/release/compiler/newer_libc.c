// What libstdc++ of GCC 12, built for glibc 2.36, uses of a C library newer than that of the sysroot (glibc 2.31).
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

// "Maybe more than one thread": always right, and reference counts are then atomic, as with older compilers.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// Behind std::random_device, which nothing in RoboCache uses.
__attribute__((visibility("hidden"))) uint32_t arc4random(void) {
    uint32_t number;
    if (getentropy(&number, sizeof number) != 0) abort();
    return number;
}
