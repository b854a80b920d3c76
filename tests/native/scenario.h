/* The reader of scenario files that the fake driver libraries share. The grammar of the
   file is described in native.py. */
#ifndef SCENARIO_H
#define SCENARIO_H

/* ENTRY(type, fn) starts the definition of an entry point. It is exported unless the
   library is built with -DWITHOUT_fn; it is hidden then, so that dlsym finds nothing. */
#define VISIBLE_IF_1 ~, "hidden"
#define VISIBLE_SECOND(first, second, ...) second
#define VISIBLE_PICK(...) VISIBLE_SECOND(__VA_ARGS__, "default", ~)
#define VISIBLE_JOIN(flag) VISIBLE_IF_##flag
#define VISIBLE(flag) VISIBLE_PICK(VISIBLE_JOIN(flag))
#define ENTRY(type, fn) __attribute__((visibility(VISIBLE(WITHOUT_##fn)))) type fn

#define NO_DEVICE (-1LL)

#pragma GCC visibility push(hidden)

/* "nvml" or "cuda": each library defines its own. */
extern const char sc_library[];

/* Every entry point begins here: the call is logged, and the scenario's behaviour for it
   is carried out. Returns the error code the scenario gives to this call, or 0. */
int sc_call(const char *function, long long device);

/* The value of a key of this library: device.N.KEY, else device.*.KEY, else KEY. sc_get
   answers NULL where the scenario has none of them; the others abort. */
const char *sc_get(long long device, const char *key);
const char *sc_text(long long device, const char *key);
long long sc_number(long long device, const char *key);
void sc_capability(long long device, int *major, int *minor);

#pragma GCC visibility pop

#endif
