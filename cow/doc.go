// Package cow turns a pristine tree into an Execution Workspace at the file
// system's price instead of git's, and takes it away again.
//
// It exists because a checkout per Worker costs the whole tree in time and
// disk, while the file system below the Runtime root can usually share the
// blocks: a btrfs snapshot or an overlay costs the same for ten files and for
// a hundred thousand, a reflink copy costs metadata only. Which of them works
// is a property of the real file system, kernel and privileges, so Probe tries
// each one out instead of guessing from a name, and Choose says why it chose.
//
// # What a strategy keeps
//
// Regular files, directories and symbolic links arrive with their mode, mtime
// to the nanosecond, holes, hard links among themselves, user.* attributes and
// POSIX ACLs; when privileged also with owner, group and security.capability.
// Set-user-ID and set-group-ID bits are kept only on a file whose owner and
// group were kept too: on another owner they would grant what nobody granted.
// Names are bytes: newlines, invalid UTF-8 and a leading dash are nothing
// special.
//
// # What it does not promise
//
//   - atime is not copied. It stays "now", because with relatime an atime older
//     than mtime makes every first read of a file a metadata write.
//   - trusted.*, security.* other than capability, and above all user.overlay.*
//     and trusted.overlay.* do not come along: as an upper or lower layer they
//     would redirect lookups (overlayfs.rst, "redirect_dir", "metacopy").
//     A btrfs snapshot is the exception: it is the source, bit for bit.
//   - Inode flags (chattr), project ids and fs-verity are not copied.
//   - FIFOs, sockets and device nodes are left out with CodeFileSkipped.
//   - Nothing is fsynced. A workspace that a power cut tears is rebuilt.
//   - A failed Materialize leaves its half-made target: the caller wrote it into
//     the ledger before, and RemoveTree takes it away.
//
// # Danger
//
// A Worker's tree is hostile input to whoever deletes it: it may hold symbolic
// links to /etc, directories of mode 000, nested subvolumes, ten thousand
// levels, and a live process that renames directories under the walker's feet
// (CVE-2021-20197, CVE-2022-21658 are that race in other removers). Therefore
// every step is one name below an open directory, opened with openat2(2)
// RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_XDEV; no path is ever
// resolved twice, and nothing here runs git or a shell.
package cow
