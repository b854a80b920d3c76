/* A replacement for libnvidia-ml.so.1 whose replies come from a scenario file. */
#include "scenario.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    INSUFFICIENT_SIZE = 7,
    LIBRARY_NOT_FOUND = 12,
};

/* A handle has the index in its lower half and a mark in its upper half. A caller that
   truncates the pointer to an int loses the mark and gets an error. */
typedef void *handle;
#define MARK (UINT64_C(0x4e564d4c) << 32)
_Static_assert(sizeof(handle) == 8, "handles are 64 bits wide");

const char sc_library[] = "nvml";

static int initialised;

static long long index_of(handle device)
{
    uint64_t value = (uintptr_t)device;
    return value >> 32 == MARK >> 32 ? (long long)(value & UINT32_MAX) : NO_DEVICE;
}

/* `bad` says that the caller's arguments cannot be right. */
static int begin(const char *function, long long device, int bad)
{
    int code = sc_call(function, device);
    if (code != SUCCESS)
        return code;
    return !initialised ? UNINITIALIZED : bad ? INVALID_ARGUMENT : SUCCESS;
}

static int begin_device(const char *function, handle device, int bad)
{
    return begin(function, index_of(device), bad || index_of(device) < 0);
}

static int give(int code, long long device, const char *key, char *out, unsigned length)
{
    if (code != SUCCESS)
        return code;
    const char *text = sc_text(device, key);
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return SUCCESS;
}

static int initialise(const char *function)
{
    int code = sc_call(function, NO_DEVICE);
    initialised += code == SUCCESS;
    return code;
}

ENTRY(int, nvmlInitWithFlags)(unsigned flags)
{
    (void)flags;
    return initialise(__func__);
}

ENTRY(int, nvmlInit_v2)(void)
{
    return initialise(__func__);
}

ENTRY(int, nvmlShutdown)(void)
{
    int code = begin(__func__, NO_DEVICE, 0);
    initialised -= code == SUCCESS;
    return code;
}

ENTRY(const char *, nvmlErrorString)(int code)
{
    static char text[32];
    sc_call(__func__, NO_DEVICE);
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

ENTRY(int, nvmlSystemGetDriverVersion)(char *version, unsigned length)
{
    int code = begin(__func__, NO_DEVICE, version == NULL);
    return give(code, NO_DEVICE, "driver_version", version, length);
}

ENTRY(int, nvmlSystemGetNVMLVersion)(char *version, unsigned length)
{
    int code = begin(__func__, NO_DEVICE, version == NULL);
    return give(code, NO_DEVICE, "nvml_version", version, length);
}

static int libcuda_is_missing(void)
{
    const char *libcuda = sc_get(NO_DEVICE, "libcuda");
    return libcuda != NULL && strcmp(libcuda, "missing") == 0;
}

/* As documented, this function returns a version that NVML knows if libcuda is missing. */
ENTRY(int, nvmlSystemGetCudaDriverVersion)(int *version)
{
    int code = begin(__func__, NO_DEVICE, version == NULL);
    if (code == SUCCESS && !libcuda_is_missing())
        *version = (int)sc_number(NO_DEVICE, "cuda_version");
    else if (code == SUCCESS && sc_get(NO_DEVICE, "known_cuda_version") != NULL)
        *version = (int)sc_number(NO_DEVICE, "known_cuda_version");
    else if (code == SUCCESS)
        *version = 13000;
    return code;
}

ENTRY(int, nvmlSystemGetCudaDriverVersion_v2)(int *version)
{
    int code = begin(__func__, NO_DEVICE, version == NULL);
    if (code == SUCCESS && libcuda_is_missing())
        return LIBRARY_NOT_FOUND;
    if (code == SUCCESS)
        *version = (int)sc_number(NO_DEVICE, "cuda_version");
    return code;
}

ENTRY(int, nvmlDeviceGetCount_v2)(unsigned *count)
{
    int code = begin(__func__, NO_DEVICE, count == NULL);
    if (code == SUCCESS)
        *count = (unsigned)sc_number(NO_DEVICE, "count");
    return code;
}

ENTRY(int, nvmlDeviceGetHandleByIndex_v2)(unsigned index, handle *device)
{
    int code = begin(__func__, index, device == NULL);
    if (code == SUCCESS && index >= (unsigned)sc_number(NO_DEVICE, "count"))
        return INVALID_ARGUMENT;
    if (code == SUCCESS)
        *device = (handle)(uintptr_t)(MARK | index);
    return code;
}

ENTRY(int, nvmlDeviceGetName)(handle device, char *name, unsigned length)
{
    int code = begin_device(__func__, device, name == NULL);
    return give(code, index_of(device), "name", name, length);
}

ENTRY(int, nvmlDeviceGetCudaComputeCapability)(handle device, int *major, int *minor)
{
    int code = begin_device(__func__, device, major == NULL || minor == NULL);
    if (code == SUCCESS)
        sc_capability(index_of(device), major, minor);
    return code;
}

struct memory {
    unsigned long long total, free, used;
};

/* With memory_growth, more memory is in use at every call. */
ENTRY(int, nvmlDeviceGetMemoryInfo)(handle device, struct memory *memory)
{
    static unsigned long long calls[64];
    long long index = index_of(device);
    int code = begin_device(__func__, device, memory == NULL);
    if (code != SUCCESS)
        return code;
    memory->total = 1ULL << 33;
    memory->used = (unsigned long long)sc_number(index, "memory_used");
    if (index < 64 && sc_get(index, "memory_growth") != NULL)
        memory->used +=
            calls[index]++ * (unsigned long long)sc_number(index, "memory_growth");
    memory->free = memory->total - memory->used;
    return SUCCESS;
}
