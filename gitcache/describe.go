package gitcache

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/gitcache/index"
	"yoi.dev/yoi-runtime/policy"
)

const lfsHeader = "version https://git-lfs.github.com/spec/v1\n"

// describe counts the tree's entries and finds its submodules and LFS pointers.
// Files are read only where an attributes file speaks of LFS at all.
func describe(top *os.File, x *index.Index, m *marker) error {
	var submodules, pointers []string
	lfs := usesLFS(top, x)
	for i := range x.Len() {
		e := x.Entry(i)
		switch {
		case e.IsGitlink():
			submodules = append(submodules, string(e.Path))
		case e.SkipWorktree:
			continue
		case e.Mode&unix.S_IFMT == unix.S_IFREG:
			size, err := sizeOf(top, e)
			if err != nil {
				return diskError(opPristine, "a file cannot be read back", err)
			}
			m.Bytes += size
			if lfs && size <= 1024 && isPointer(top, string(e.Path)) {
				pointers = append(pointers, string(e.Path))
			}
		}
		m.Entries++
	}
	if len(submodules) > 0 {
		m.Warnings = append(m.Warnings, *policy.Warnf(policy.CodeSubmodulesNotFilled, opPristine, "the tree has %d submodules, left as empty directories", len(submodules)).
			With("count", strconv.Itoa(len(submodules))).With("paths", joinPaths(submodules)))
	}
	if len(pointers) > 0 {
		m.Warnings = append(m.Warnings, *policy.Warnf(policy.CodeLFSNotFilled, opPristine, "the tree has %d Git LFS pointers, left as pointer files", len(pointers)).
			With("count", strconv.Itoa(len(pointers))).With("paths", joinPaths(pointers)))
	}
	return nil
}

// sizeOf trusts the entry just patched, except where 32 bits may not hold it.
func sizeOf(top *os.File, e index.Entry) (int64, error) {
	if e.Stat.Size < 1<<31 {
		return int64(e.Stat.Size), nil
	}
	f, err := openBeneath(top, string(e.Path), unix.O_PATH, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func usesLFS(top *os.File, x *index.Index) bool {
	for i := range x.Len() {
		e := x.Entry(i)
		if e.SkipWorktree || e.Mode&unix.S_IFMT != unix.S_IFREG || !isAttributesFile(e.Path) {
			continue
		}
		if b, err := readBeneath(top, string(e.Path), 1<<20); err == nil && bytes.Contains(b, []byte("filter=lfs")) {
			return true
		}
	}
	return false
}

func isAttributesFile(path []byte) bool {
	const name = ".gitattributes"
	return bytes.Equal(path, []byte(name)) || bytes.HasSuffix(path, []byte("/"+name))
}

func isPointer(top *os.File, path string) bool {
	b, err := readBeneath(top, path, 1024)
	return err == nil && bytes.HasPrefix(b, []byte(lfsHeader))
}

func readBeneath(top *os.File, path string, max int64) ([]byte, error) {
	f, err := openBeneath(top, path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readRegular(f, max)
}
