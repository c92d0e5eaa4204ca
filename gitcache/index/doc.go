// Package index reads git index files (versions 2 and 3) and replaces the stat
// data of their entries in place.
//
// It exists because a copied tree has new inodes and change times: git would
// re-read every file at the first `git status`, and running git to refresh the
// index costs as much. The parser takes hostile bytes: it never reads out of
// bounds and never panics. It does not check that object ids or paths are
// sensible, does not read version 4 (whose paths are compressed) nor split
// indexes (whose entries are in another file), and never touches what an entry
// says about content: mode, object id, flags and path stay as they are.
//
// See gitformat-index(5).
package index
