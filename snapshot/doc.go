// Package snapshot reads and writes archives from which a tree can be made on
// another host without its repository: the commit and every git object of its
// tree, and for a workspace's archive also the files as they are now.
//
// # Why not a bundle or a tar file
//
// Git's packs differ from run to run (threads, deltas, zlib), so two hosts would
// name one tree by two digests; a bundle cannot be shallow; and a tar file can
// say everything that must not be unpacked: paths with "..", a file below a
// symbolic link, two entries of one name, devices, set-user-ID bits. Here one
// tree has one form, the digest is of that form and not of its compression, and
// the reader refuses any other form.
//
// # Format
//
// A zstd frame (RFC 8878) around
//
//	"yoi-snapshot-1" LF
//	header as JSON, one line, fields in the order of Header
//	objects: tag C, T or B, size, content
//	for a workspace, entries: tag d, f, F, l or h, path, …, and the tag E
//
// Numbers are the shortest uvarints; strings are a length and bytes. The objects
// are the commit, its trees in preorder and its blobs in the order of their
// first path, each once: what comes next, and its id, is known before it is
// read. Entries are sorted, a directory before what it holds.
//
//	d path mode attributes
//	f path mode attributes size content
//	F the same, of a file that has further names in the archive
//	l path target
//	h path, path of an F
//
// Attributes are a count and sorted names and values, user.* only.
//
// The digest is SHA-256 of everything inside the frame.
//
// # What it does not promise
//
// Modification times, owners, ACLs and other attributes are not in an archive:
// they would make one tree's digest differ from host to host. A file gets the
// time of its commit. History is not there either: the commit is a shallow one.
// A workspace's own git directory (index, refs, commits) is never read.
package snapshot
