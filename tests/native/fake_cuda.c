/* A replacement for libcuda.so.1 whose replies come from a scenario file. */
#define _POSIX_C_SOURCE 200809L
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char sc_library[] = "cuda";

static int initialised;

int cuda_begin(const char *function, long long device, int bad)
{
    int code = sc_call(function, device);
    const char *lost = device < 0 ? NULL : sc_get(device, "lost");
    if (code == SUCCESS && lost != NULL && access(lost, F_OK) == 0)
        return DEVICE_UNAVAILABLE;
    if (code != SUCCESS)
        return code;
    return !initialised ? NOT_INITIALIZED : bad ? INVALID_VALUE : SUCCESS;
}

int cuda_device_code(int device)
{
    return device < 0 || device >= sc_number(NO_DEVICE, "count") ? INVALID_DEVICE : SUCCESS;
}

/* As in the real library, a machine without a device is an error, unless the scenario
   says "error.cuInit = 0". */
ENTRY(int, cuInit)(unsigned flags)
{
    int code = sc_call(__func__, NO_DEVICE);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (code != SUCCESS)
        return code;
    if (flags != 0)
        return INVALID_VALUE;
    if (visible != NULL && (*visible == '\0' || strcmp(visible, "-1") == 0))
        return NO_DEVICE_FOUND;
    if (sc_number(NO_DEVICE, "count") == 0 && sc_get(NO_DEVICE, "error.cuInit") == NULL)
        return NO_DEVICE_FOUND;
    initialised = 1;
    return SUCCESS;
}

/* The documentation says that this function works without cuInit. */
ENTRY(int, cuDriverGetVersion)(int *version)
{
    int code = sc_call(__func__, NO_DEVICE);
    if (code == SUCCESS && version == NULL)
        return INVALID_VALUE;
    if (code == SUCCESS)
        *version = (int)sc_number(NO_DEVICE, "cuda_version");
    return code;
}

ENTRY(int, cuDeviceGetCount)(int *count)
{
    int code = cuda_begin(__func__, NO_DEVICE, count == NULL);
    if (code == SUCCESS)
        *count = (int)sc_number(NO_DEVICE, "count");
    return code;
}

ENTRY(int, cuDeviceGet)(int *device, int ordinal)
{
    int code = cuda_begin(__func__, ordinal, device == NULL);
    code = code ? code : cuda_device_code(ordinal);
    if (code == SUCCESS)
        *device = ordinal;
    return code;
}

ENTRY(int, cuDeviceGetAttribute)(int *value, int attribute, int device)
{
    int major, minor;
    int known = attribute == CAPABILITY_MAJOR || attribute == CAPABILITY_MINOR;
    int code = cuda_begin(__func__, device, value == NULL || !known);
    code = code ? code : cuda_device_code(device);
    if (code == SUCCESS) {
        sc_capability(device, &major, &minor);
        *value = attribute == CAPABILITY_MAJOR ? major : minor;
    }
    return code;
}

/* A name that does not fit is truncated; the result always ends with a NUL. */
ENTRY(int, cuDeviceGetName)(char *name, int length, int device)
{
    int code = cuda_begin(__func__, device, name == NULL || length <= 0);
    code = code ? code : cuda_device_code(device);
    if (code == SUCCESS) {
        const char *text = sc_text(device, "name");
        size_t room = (size_t)length - 1;
        size_t kept = strlen(text) < room ? strlen(text) : room;
        memcpy(name, text, kept);
        name[kept] = '\0';
    }
    return code;
}

ENTRY(int, cuGetErrorName)(int error, const char **name)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE_FOUND, "CUDA_ERROR_NO_DEVICE"},
        {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
        {999, "CUDA_ERROR_UNKNOWN"},
    };
    int code = sc_call(__func__, NO_DEVICE);
    if (code != SUCCESS || name == NULL)
        return code ? code : INVALID_VALUE;
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == error)
            *name = names[i].name;
    return *name == NULL ? INVALID_VALUE : SUCCESS;
}
