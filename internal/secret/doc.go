// Package secret holds secret values on their way from a store to a Worker.
//
// Go's own memory is no place for them: the collector copies and frees without
// wiping, a core dump has all of it, and a value in a string finds its way into a
// log. A Value is memory of its own, outside Go's heap: locked (mlock(2), as far as
// RLIMIT_MEMLOCK allows), left out of core dumps (MADV_DONTDUMP), empty in a forked
// child (MADV_WIPEONFORK, Linux 4.14), and wiped when its use is over. It refuses to
// be printed or encoded.
//
// Between processes values travel in a sealed memfd (Pack, Unpack), never in a
// message's text: the daemon reads the store, the helper gives it to the launch.
//
// It does not protect a value from root, from whoever may ptrace the process, nor
// from the Worker that it is meant for.
package secret
