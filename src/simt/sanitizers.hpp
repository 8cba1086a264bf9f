/// Macros for the sanitizers of this build, which need to be told about fibers.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define TOKENYARD_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define TOKENYARD_TSAN 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TOKENYARD_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define TOKENYARD_TSAN 1
#endif
#endif
