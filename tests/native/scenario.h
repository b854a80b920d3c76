/* The reader of scenario files, which both fake driver libraries contain. The docstring
   of tests/support/native.py describes the grammar of the file. */
#ifndef SCENARIO_H
#define SCENARIO_H

/* ENTRY(type, fn) starts the definition of an entry point. The entry point is exported,
   unless the library is built with -DWITHOUT_fn: then dlsym does not find it. */
#define VISIBLE_IF_1 ~, "hidden"
#define VISIBLE_SECOND(first, second, ...) second
#define VISIBLE_PICK(...) VISIBLE_SECOND(__VA_ARGS__, "default", ~)
#define VISIBLE_JOIN(flag) VISIBLE_IF_##flag
#define VISIBLE(flag) VISIBLE_PICK(VISIBLE_JOIN(flag))
#define ENTRY(type, fn) __attribute__((visibility(VISIBLE(WITHOUT_##fn)))) type fn

#define NO_DEVICE (-1LL)

#pragma GCC visibility push(hidden)

/* "nvml" or "cuda": each library defines its own name. */
extern const char sc_library[];

/* Every entry point calls this function first. It logs the call and carries out the
   behaviour that the scenario has for it. It returns the error code that the scenario
   gives to this call, or 0. */
int sc_call(const char *function, long long device);

/* Return the value of a key of this library: device.N.KEY, else device.*.KEY, else KEY.
   If the scenario has none of them, sc_get returns NULL, and the others abort. */
const char *sc_get(long long device, const char *key);
const char *sc_text(long long device, const char *key);
long long sc_number(long long device, const char *key);
void sc_capability(long long device, int *major, int *minor);

#pragma GCC visibility pop

#endif
