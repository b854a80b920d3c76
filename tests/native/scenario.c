#define _POSIX_C_SOURCE 200809L
#include "scenario.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VARIABLE "NV_FAKE_SCENARIO"

/* All keys. "#" stands for a device index or "*". A SILENT function returns no error code.
   Only a DEVICE function can behave differently from device to device. */
#define SILENT(scope, fn) {scope ".behaviour." fn, BEHAVIOUR}
#define SYSTEM(scope, fn) SILENT(scope, fn), {scope ".error." fn, INTEGER}
#define DEVICE(scope, fn) SYSTEM(scope, fn), SYSTEM(scope ".device.#", fn)
static const struct {
    const char *key;
    enum { TEXT, PATH, INTEGER, UNSIGNED, CAPABILITY, PRESENCE, BEHAVIOUR } type;
} known[] = {
    {"log", PATH},
    {"nvml.driver_version", TEXT},
    {"nvml.nvml_version", TEXT},
    {"nvml.cuda_version", INTEGER},
    {"nvml.known_cuda_version", INTEGER},
    {"nvml.libcuda", PRESENCE},
    {"nvml.count", UNSIGNED},
    {"nvml.device.#.capability", CAPABILITY},
    {"nvml.device.#.name", TEXT},
    {"nvml.device.#.memory_used", UNSIGNED},
    {"nvml.device.#.memory_growth", UNSIGNED},
    {"cuda.cuda_version", INTEGER},
    {"cuda.count", UNSIGNED},
    {"cuda.device.#.capability", CAPABILITY},
    {"cuda.device.#.name", TEXT},
    {"cuda.device.#.result", TEXT},
    {"cuda.device.#.lost", PATH},
    {"cuda.ptx_isa", CAPABILITY},
    SILENT("nvml", "load"),
    SYSTEM("nvml", "nvmlInitWithFlags"),
    SYSTEM("nvml", "nvmlInit_v2"),
    SYSTEM("nvml", "nvmlShutdown"),
    SILENT("nvml", "nvmlErrorString"),
    SYSTEM("nvml", "nvmlSystemGetDriverVersion"),
    SYSTEM("nvml", "nvmlSystemGetNVMLVersion"),
    SYSTEM("nvml", "nvmlSystemGetCudaDriverVersion"),
    SYSTEM("nvml", "nvmlSystemGetCudaDriverVersion_v2"),
    SYSTEM("nvml", "nvmlDeviceGetCount_v2"),
    DEVICE("nvml", "nvmlDeviceGetHandleByIndex_v2"),
    DEVICE("nvml", "nvmlDeviceGetName"),
    DEVICE("nvml", "nvmlDeviceGetCudaComputeCapability"),
    DEVICE("nvml", "nvmlDeviceGetMemoryInfo"),
    SILENT("cuda", "load"),
    SYSTEM("cuda", "cuInit"),
    SYSTEM("cuda", "cuDriverGetVersion"),
    SYSTEM("cuda", "cuDeviceGetCount"),
    DEVICE("cuda", "cuDeviceGet"),
    DEVICE("cuda", "cuDeviceGetAttribute"),
    DEVICE("cuda", "cuDeviceGetName"),
    SYSTEM("cuda", "cuGetErrorName"),
    SYSTEM("cuda", "cuGetProcAddress_v2"),
    DEVICE("cuda", "cuDevicePrimaryCtxRetain"),
    DEVICE("cuda", "cuDevicePrimaryCtxRelease_v2"),
    DEVICE("cuda", "cuCtxSetCurrent"),
    DEVICE("cuda", "cuCtxSynchronize"),
    DEVICE("cuda", "cuMemAlloc_v2"),
    DEVICE("cuda", "cuMemFree_v2"),
    DEVICE("cuda", "cuMemcpyDtoH_v2"),
    DEVICE("cuda", "cuModuleLoadData"),
    DEVICE("cuda", "cuModuleLoadDataEx"),
    DEVICE("cuda", "cuModuleUnload"),
    DEVICE("cuda", "cuModuleGetFunction"),
    DEVICE("cuda", "cuLinkCreate_v2"),
    DEVICE("cuda", "cuLinkAddData_v2"),
    DEVICE("cuda", "cuLinkComplete"),
    DEVICE("cuda", "cuLinkDestroy"),
    DEVICE("cuda", "cuLaunchKernel"),
};

static struct entry {
    char *key, *value;
} *entries;
static size_t entry_count;
static bool loaded;

static const char *lookup(const char *key)
{
    for (size_t i = 0; i < entry_count; i++)
        if (strcmp(entries[i].key, key) == 0)
            return entries[i].value;
    return NULL;
}

static bool append_to_log(const char *what, const char *detail)
{
    const char *path = lookup("log");
    FILE *file = path == NULL ? NULL : fopen(path, "ae");
    if (file == NULL)
        return path == NULL;
    fprintf(file, "%s%s%s\n", what, *detail ? " " : "", detail);
    return fclose(file) == 0;
}

/* End the process after a mistake in the scenario or in the test: the mistake must not
   look like a reply of the driver. */
static _Noreturn void fatal(const char *problem, const char *subject)
{
    fprintf(stderr, "fake %s: %s: %s\n", sc_library, problem, subject);
    append_to_log("FATAL", problem);
    abort();
}

/* ---- values ---- */

static long long number(const char *key, const char *text, long long low, long long high)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < low || value > high)
        fatal("not a number, or out of range", key);
    return value;
}

static void capability(const char *key, const char *text, int *major, int *minor)
{
    char more;
    if (sscanf(text, "%9d.%9d%c", major, minor, &more) != 2)
        fatal("not a capability such as 9.0", key);
}

static void rest(long long milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

static _Noreturn void never_return(bool deaf)
{
    sigset_t all;
    sigfillset(&all);
    for (int number = 1; deaf && number < 65; number++)
        signal(number, SIG_IGN); /* for all threads; SIGKILL and SIGSTOP cannot be ignored */
    if (deaf)
        sigprocmask(SIG_BLOCK, &all, NULL);
    for (;;)
        rest(1000);
}

/* Check a behaviour, and carry it out if `act` is true. */
static void behave(const char *key, const char *text, bool act)
{
    char word[8] = "";
    size_t length = strcspn(text, " ");
    const char *argument = text + length + strspn(text + length, " ");
    if (length < sizeof word)
        memcpy(word, text, length);
    bool given = *argument != '\0';

    if (given && strcmp(word, "print") == 0) {
        if (act)
            dprintf(1, "%s\n", argument); /* write(2): at once */
        if (act)
            printf("%s\n", argument); /* not flushed: possibly only at exit */
    } else if (given && strcmp(word, "exit") == 0) {
        int status = (int)number(key, argument, 0, 255);
        if (act)
            exit(status);
    } else if (given && strcmp(word, "slow") == 0) {
        rest(number(key, argument, 0, INT_MAX) * act);
    } else if (given && strcmp(word, "sleep") == 0) {
        rest(number(key, argument, 0, INT_MAX) * 1000 * act);
    } else if (!given && (strcmp(word, "sleep") == 0 || strcmp(word, "hang") == 0)) {
        if (act)
            never_return(*word == 'h');
    } else if (!given && strcmp(word, "abort") == 0) {
        if (act)
            abort();
    } else if (!given && strcmp(word, "segv") == 0) {
        volatile int *volatile nowhere = NULL;
        if (act)
            *nowhere = 0;
    } else {
        fatal("unknown behaviour", key);
    }
}

/* ---- the file ---- */

static void check(const char *key, const char *value)
{
    char pattern[160];
    int unused;
    size_t i = 0, total = sizeof known / sizeof *known;
    const char *index = strstr(key, ".device."), *tail = "";
    if (index != NULL) {
        index += strlen(".device.");
        size_t length = *index == '*' ? 1 : strspn(index, "0123456789");
        if (length == 0 || length > 9 || (length > 1 && *index == '0'))
            fatal("unknown key", key);
        tail = index + length;
    }
    int head = index != NULL ? (int)(index - key) : (int)strlen(key);
    snprintf(pattern, sizeof pattern, "%.*s%s%s", head, key, index ? "#" : "", tail);
    while (i < total && strcmp(known[i].key, pattern) != 0)
        i++;
    if (i == total)
        fatal("unknown key", key);
    if (known[i].type == INTEGER)
        number(key, value, INT_MIN, INT_MAX);
    else if (known[i].type == UNSIGNED)
        number(key, value, INT_MIN, UINT_MAX);
    else if (known[i].type == CAPABILITY)
        capability(key, value, &unused, &unused);
    else if (known[i].type == BEHAVIOUR)
        behave(key, value, false);
    else if (known[i].type == PRESENCE && strcmp(value, "present") != 0
             && strcmp(value, "missing") != 0)
        fatal("neither present nor missing", key);
    else if (known[i].type == PATH && *value != '/')
        fatal("not an absolute path", key);
}

static char *trim(char *text)
{
    text += strspn(text, " \t\r\n");
    size_t length = strlen(text);
    while (length > 0 && strchr(" \t\r\n", text[length - 1]) != NULL)
        text[--length] = '\0';
    return text;
}

/* Replace \\ and \xNN in the text itself. */
static void unescape(const char *key, char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0'; to++) {
        char hex[3] = "";
        if (*from != '\\') {
            *to = *from++;
        } else if (from[1] == '\\') {
            *to = '\\';
            from += 2;
        } else {
            if (from[1] == 'x' && strspn(from + 2, "0123456789abcdefABCDEF") >= 2)
                memcpy(hex, from + 2, 2);
            *to = (char)strtol(hex, NULL, 16);
            if (*to == '\0')
                fatal("not an escape", key);
            from += 4;
        }
    }
    *to = '\0';
}

static void add(char *line)
{
    char *equals = strchr(line, '=');
    if (equals == NULL)
        fatal("no '=' in the line", line);
    *equals = '\0';
    struct entry new = {strdup(trim(line)), strdup(trim(equals + 1))};
    struct entry *grown = realloc(entries, (entry_count + 1) * sizeof *entries);
    if (new.key == NULL || new.value == NULL || grown == NULL)
        fatal("out of memory", line);
    entries = grown;
    if (lookup(new.key) != NULL)
        fatal("key given twice", new.key);
    unescape(new.key, new.value);
    check(new.key, new.value);
    entries[entry_count++] = new;
}

static void load(void)
{
    const char *path = getenv(VARIABLE);
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    char *line = NULL;
    size_t size = 0;
    if (file == NULL)
        fatal("cannot open the file it names", VARIABLE);
    for (ssize_t length; (length = getline(&line, &size, file)) >= 0;) {
        if (strlen(line) != (size_t)length)
            fatal("NUL in the file", path);
        char *text = trim(line);
        if (*text != '\0' && *text != '#')
            add(text);
    }
    if (ferror(file))
        fatal("cannot read", path);
    free(line);
    fclose(file);
    loaded = true;
    sc_call("load", NO_DEVICE);
}

/* Loading the library is logged and can have a behaviour, as a call can. */
__attribute__((constructor)) static void on_load(void)
{
    if (getenv(VARIABLE) != NULL)
        load();
}

/* ---- the functions that the entry points use ---- */

const char *sc_get(long long device, const char *key)
{
    char full[160];
    const char *value = NULL;
    if (device >= 0) {
        snprintf(full, sizeof full, "%s.device.%lld.%s", sc_library, device, key);
        value = lookup(full);
        snprintf(full, sizeof full, "%s.device.*.%s", sc_library, key);
        value = value != NULL ? value : lookup(full);
    }
    snprintf(full, sizeof full, "%s.%s", sc_library, key);
    return value != NULL ? value : lookup(full);
}

const char *sc_text(long long device, const char *key)
{
    const char *value = sc_get(device, key);
    if (value == NULL)
        fatal("asked for, and not in the scenario", key);
    return value;
}

long long sc_number(long long device, const char *key)
{
    return strtoll(sc_text(device, key), NULL, 10);
}

void sc_capability(long long device, int *major, int *minor)
{
    capability("capability", sc_text(device, "capability"), major, minor);
}

int sc_call(const char *function, long long device)
{
    char key[80];
    if (!loaded)
        load();
    if (!append_to_log(function, strcmp(function, "load") == 0 ? sc_library : ""))
        fatal("cannot write the log", function);
    snprintf(key, sizeof key, "behaviour.%s", function);
    if (sc_get(device, key) != NULL)
        behave(key, sc_get(device, key), true);
    snprintf(key, sizeof key, "error.%s", function);
    return sc_get(device, key) != NULL ? (int)sc_number(device, key) : 0;
}
