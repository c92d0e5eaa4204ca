// Package compile turns system-call profiles into filters with libseccomp.
//
// It is apart from its parent because it needs cgo: the daemon links it, the
// privileged helper does not, and `yoi run` needs it only for a policy that
// adds calls to a built-in profile.
//
// It only compiles. Loading is for the child, last before exec, with
// seccomp(2) directly and without SECCOMP_FILTER_FLAG_TSYNC: the child has one
// thread, and libseccomp's own load would act on the daemon.
package compile
