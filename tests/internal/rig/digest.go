package rig

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Contents describes every file below dirs: name, mode, owner, content, and
// for what is not a directory its mtime. Two equal lists are trees that are
// the same byte for byte.
func Contents(t testing.TB, dirs ...string) []string {
	t.Helper()
	var out []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			line, err := describe(path)
			out = append(out, line)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func describe(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	head := fmt.Sprintf("%06o %d:%d %q", st.Mode, st.Uid, st.Gid, path)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return head, nil
	case unix.S_IFLNK:
		to, err := os.Readlink(path)
		return fmt.Sprintf("%s -> %q", head, to), err
	case unix.S_IFREG:
		if strings.HasSuffix(path, ".lock") {
			st.Mtim = unix.Timespec{} // the cache's own, touched at each use
		}
		b, err := os.ReadFile(path)
		return fmt.Sprintf("%s %d.%09d %x", head, st.Mtim.Sec, st.Mtim.Nsec, sha256.Sum256(b)), err
	}
	return head, nil
}

// Cache is the directories of a repository's cache that no Worker may change:
// the mirror and the pristine trees.
func Cache(root, repo string) []string {
	dir := filepath.Join(root, "repository-cache/git", repo)
	return []string{filepath.Join(dir, "bare.git"), filepath.Join(dir, "trees")}
}
