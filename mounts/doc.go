// Package mounts describes a sandbox's mount tree as data, and makes the
// detached mounts that only a privileged process can make.
//
// It exists because a mount that is visible on the host outlives the process
// that made it, and a path that is walked by name can be turned elsewhere by
// whoever may write along it. So nothing here ever attaches a mount on the
// host: a Plan is carried out by package nsexec inside the mount namespace of
// one sandbox, and CloneDetached returns a mount that is attached nowhere and
// dies with its descriptor (open_tree(2), mount_setattr(2), Linux 5.12).
// Every walk below a directory that others may write is one openat2(2) with
// RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS; there is no weaker fallback.
//
// # What the Worker can read about its mounts
//
// The fourth field of /proc/self/mountinfo is the path of a mount's root
// inside its file system (proc_pid_mountinfo(5)), and no mount option hides
// it: a Bind of /srv/yoi/x shows "/srv/yoi/x" or a tail of that. An Overlay
// shows "/" and the option strings, which nsexec writes as relative names.
// Whatever lies at a path that the Worker must not learn is therefore given as
// an Overlay: without Lower, the upper directory is the writable workspace
// itself; without Data, it is a read-only view of the lower ones.
//
// # What it does not promise
//
// Plan.Validate is about the sandbox's side: it does not open the sources. A
// Source.Path is trusted, since it comes from the operator's configuration;
// for anything below the Runtime root use Beneath or Mount.
package mounts
