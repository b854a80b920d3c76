/* Contexts, modules and kernels of the fake libcuda. Its memory is that of the process,
   and its one kernel is `nvp_probe` of doctor: a launch computes in C what the text of that
   kernel says. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL "nvp_probe"

struct module {
    int has_kernel;
};

struct link {
    char *cubin;
    size_t size;
};

/* What cuLinkComplete makes: the header of an ELF file in the encoding of CUDA 13, and the
   name of the kernel behind it. */
enum { ELF_HEADER = 64, MACHINE_AT = 18, OSABI_AT = 7, FLAGS_AT = 48, CUDA_MACHINE = 190 };

static long long current = NO_DEVICE;

static int begin(const char *function, int bad)
{
    int code = cuda_begin(function, current, bad);
    return code == SUCCESS && current == NO_DEVICE ? INVALID_CONTEXT : code;
}

/* ---- symbols ---- */

/* The real function returns the newest version of a function whose first version has
   another signature; cuda-python asks for names without a version. */
static const char *versioned(const char *symbol)
{
    static const char *const second[] = {
        "cuMemAlloc",   "cuMemFree",    "cuMemcpyHtoD", "cuMemcpyDtoH",
        "cuLinkCreate", "cuLinkAddData", "cuDevicePrimaryCtxRelease",
    };
    static char name[64];
    for (size_t i = 0; i < sizeof second / sizeof *second; i++)
        if (strcmp(symbol, second[i]) == 0) {
            snprintf(name, sizeof name, "%s_v2", symbol);
            return name;
        }
    return symbol;
}

ENTRY(int, cuGetProcAddress_v2)(const char *symbol, void **function, int version,
                                uint64_t flags, int *status)
{
    Dl_info own;
    (void)version, (void)flags;
    int code = sc_call(__func__, NO_DEVICE);
    if (code != SUCCESS || symbol == NULL || function == NULL)
        return code ? code : INVALID_VALUE;
    void *library = NULL;
    if (dladdr(&current, &own) != 0)
        library = dlopen(own.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    *function = library == NULL ? NULL : dlsym(library, versioned(symbol));
    if (library != NULL)
        dlclose(library);
    if (status != NULL)
        *status = *function == NULL; /* CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND is 1 */
    return *function == NULL ? NOT_FOUND : SUCCESS;
}

/* ---- contexts ---- */

ENTRY(int, cuDevicePrimaryCtxRetain)(void **context, int device)
{
    int code = cuda_begin(__func__, device, context == NULL);
    code = code ? code : cuda_device_code(device);
    if (code == SUCCESS)
        *context = (void *)(intptr_t)(device + 1);
    return code;
}

ENTRY(int, cuDevicePrimaryCtxRelease_v2)(int device)
{
    int code = cuda_begin(__func__, device, 0);
    return code ? code : cuda_device_code(device);
}

ENTRY(int, cuCtxSetCurrent)(void *context)
{
    long long device = (long long)(intptr_t)context - 1;
    int code = cuda_begin(__func__, device, 0);
    if (code == SUCCESS)
        current = device;
    return code;
}

ENTRY(int, cuCtxSynchronize)(void)
{
    return begin(__func__, 0);
}

/* ---- memory ---- */

ENTRY(int, cuMemAlloc_v2)(uint64_t *pointer, size_t size)
{
    int code = begin(__func__, pointer == NULL || size == 0);
    if (code == SUCCESS)
        *pointer = (uint64_t)(uintptr_t)calloc(1, size);
    return code;
}

ENTRY(int, cuMemFree_v2)(uint64_t pointer)
{
    int code = begin(__func__, 0);
    if (code == SUCCESS)
        free((void *)(uintptr_t)pointer);
    return code;
}

ENTRY(int, cuMemcpyDtoH_v2)(void *to, uint64_t from, size_t size)
{
    int code = begin(__func__, to == NULL || from == 0);
    if (code == SUCCESS)
        memcpy(to, (const void *)(uintptr_t)from, size);
    return code;
}

/* ---- modules ---- */

static int check_ptx(const char *text)
{
    int major, minor, newest_major, newest_minor, target, gpu_major, gpu_minor;
    const char *version = strstr(text, ".version"), *wanted = strstr(text, ".target sm_");
    if (version == NULL || wanted == NULL
        || sscanf(version, ".version %d.%d", &major, &minor) != 2
        || sscanf(wanted, ".target sm_%d", &target) != 1)
        return INVALID_PTX;
    if (sscanf(sc_text(NO_DEVICE, "ptx_isa"), "%d.%d", &newest_major, &newest_minor) != 2)
        abort();
    if (major > newest_major || (major == newest_major && minor > newest_minor))
        return UNSUPPORTED_PTX_VERSION;
    sc_capability(current, &gpu_major, &gpu_minor);
    return target > 10 * gpu_major + gpu_minor ? INVALID_PTX : SUCCESS;
}

/* Machine code runs on GPUs of its major version with the same or a higher minor one. */
static int check_cubin(const unsigned char *image)
{
    int gpu_major, gpu_minor;
    unsigned flags = image[FLAGS_AT] | (unsigned)image[FLAGS_AT + 1] << 8;
    int target = (int)(image[OSABI_AT] == 0x33 ? flags & 0xff : flags >> 8 & 0xff);
    if ((image[MACHINE_AT] | image[MACHINE_AT + 1] << 8) != CUDA_MACHINE)
        return INVALID_IMAGE;
    sc_capability(current, &gpu_major, &gpu_minor);
    return target / 10 == gpu_major && target % 10 <= gpu_minor ? SUCCESS
                                                                : NO_BINARY_FOR_GPU;
}

static int load(int code, struct module **module, const void *image)
{
    int is_elf = code == SUCCESS && memcmp(image, "\177ELF", 4) == 0;
    if (code == SUCCESS)
        code = is_elf ? check_cubin(image) : check_ptx(image);
    if (code == SUCCESS) {
        const char *text = (const char *)image + (is_elf ? ELF_HEADER : 0);
        *module = calloc(1, sizeof **module);
        (*module)->has_kernel = is_elf ? strcmp(text, KERNEL) == 0
                                       : strstr(text, ".entry " KERNEL "(") != NULL;
    }
    return code;
}

ENTRY(int, cuModuleLoadData)(struct module **module, const void *image)
{
    return load(begin(__func__, module == NULL || image == NULL), module, image);
}

ENTRY(int, cuModuleLoadDataEx)(struct module **module, const void *image, unsigned count,
                               int *options, void **values)
{
    (void)count, (void)options, (void)values;
    return load(begin(__func__, module == NULL || image == NULL), module, image);
}

ENTRY(int, cuModuleUnload)(struct module *module)
{
    int code = begin(__func__, module == NULL);
    if (code == SUCCESS)
        free(module);
    return code;
}

ENTRY(int, cuModuleGetFunction)(void **function, struct module *module, const char *name)
{
    int code = begin(__func__, function == NULL || module == NULL || name == NULL);
    if (code == SUCCESS && !(module->has_kernel && strcmp(name, KERNEL) == 0))
        return NOT_FOUND;
    if (code == SUCCESS)
        *function = module;
    return code;
}

ENTRY(int, cuLinkCreate_v2)(unsigned count, int *options, void **values, struct link **out)
{
    (void)count, (void)options, (void)values;
    int code = begin(__func__, out == NULL);
    if (code == SUCCESS)
        *out = calloc(1, sizeof **out);
    return code;
}

ENTRY(int, cuLinkAddData_v2)(struct link *link, int type, void *data, size_t size,
                             const char *name, unsigned count, int *options, void **values)
{
    int major, minor;
    (void)type, (void)size, (void)name, (void)count, (void)options, (void)values;
    int code = begin(__func__, link == NULL || data == NULL);
    code = code ? code : check_ptx(data);
    if (code == SUCCESS) {
        sc_capability(current, &major, &minor);
        link->size = ELF_HEADER + sizeof KERNEL;
        link->cubin = calloc(1, link->size);
        memcpy(link->cubin, "\177ELF", 4);
        link->cubin[OSABI_AT] = 0x41;
        link->cubin[MACHINE_AT] = (char)CUDA_MACHINE;
        link->cubin[FLAGS_AT + 1] = (char)(10 * major + minor);
        memcpy(link->cubin + ELF_HEADER, KERNEL, sizeof KERNEL);
    }
    return code;
}

ENTRY(int, cuLinkComplete)(struct link *link, void **cubin, size_t *size)
{
    int code = begin(__func__, link == NULL || cubin == NULL || link->cubin == NULL);
    if (code == SUCCESS) {
        *cubin = link->cubin;
        *size = link->size;
    }
    return code;
}

ENTRY(int, cuLinkDestroy)(struct link *link)
{
    int code = begin(__func__, link == NULL);
    if (code == SUCCESS) {
        /* The code belongs to the link, and whoever uses it later shall notice. */
        memset(link->cubin, 0, link->cubin == NULL ? 0 : link->size);
        free(link->cubin);
        free(link);
    }
    return code;
}

/* ---- kernels ---- */

/* The parameters of the kernel are a pointer and a factor. */
ENTRY(int, cuLaunchKernel)(void *function, unsigned gx, unsigned gy, unsigned gz,
                           unsigned bx, unsigned by, unsigned bz, unsigned shared,
                           void *stream, void **parameters, void **extra)
{
    (void)shared, (void)stream, (void)extra;
    int bad = function == NULL || parameters == NULL || gx * gy * gz * bx * by * bz == 0;
    int code = begin(__func__, bad);
    if (code != SUCCESS)
        return code;
    const char *result = sc_get(current, "result"), *lost = sc_get(current, "lost");
    if (lost != NULL) {
        FILE *file = fopen(lost, "we");
        return file == NULL || fclose(file) != 0 ? INVALID_VALUE : LAUNCH_FAILED;
    }
    uint32_t *out = (uint32_t *)(uintptr_t) * (uint64_t *)parameters[0];
    uint32_t factor = *(uint32_t *)parameters[1];
    for (uint32_t i = 0; i < gx * bx; i++)
        out[i] = i * factor + 7;
    if (result != NULL && strcmp(result, "wrong") == 0)
        out[gx * bx - 1] ^= 1;
    return SUCCESS;
}
