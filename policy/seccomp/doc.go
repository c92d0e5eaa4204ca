// Package seccomp holds the system-call profiles of the sandbox as data, and
// their filters compiled beforehand.
//
// It exists because the kernel's system-call table is the sandbox's largest
// attack surface, and because compiling a filter needs libseccomp through cgo,
// which the privileged helper must not link and `yoi run` should not wait for.
// So the compiler is in the subpackage compile, and the built-in profiles'
// filters are embedded here in a form that loads faster (see Assemble); tests
// there hold them equal to what libseccomp makes of the same rules.
//
// The choices are those of podman and moby: the default answer is ENOSYS, so
// that a C library falls back to an older call as on an older kernel; EPERM
// names what is known to be dangerous; only a foreign ABI kills.
//
// A filter sees numbers and registers, never what a pointer points to: it does
// not promise anything about paths, addresses or the contents of clone3's
// arguments. It is one wall of several, and useless without no_new_privs. On
// Linux before 4.8 a tracer could change a call after the filter had seen it.
package seccomp
