/* What the two halves of the fake libcuda share. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "scenario.h"

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE_FOUND = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
    CAPABILITY_MAJOR = 75,
    CAPABILITY_MINOR = 76,
};

#pragma GCC visibility push(hidden)

/* Log the call, carry out what the scenario has for it, and return its error code.
   `bad` says that the caller's arguments cannot be right. */
int cuda_begin(const char *function, long long device, int bad);

/* Return INVALID_DEVICE, or SUCCESS for a device that the scenario has. */
int cuda_device_code(int device);

#pragma GCC visibility pop

#endif
