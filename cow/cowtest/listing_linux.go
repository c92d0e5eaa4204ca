package cowtest

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Listing describes a tree, an entry per path below its top. "" is the top.
type Listing map[string]string

// List describes the tree at dir: kind, mode, owner, mtime, content, holes,
// extended attributes and which names are one inode.
func List(t testing.TB, dir string) Listing {
	t.Helper()
	l := Listing{}
	inodes := map[uint64]string{} // the first name of each
	err := filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(name, dir), "/")
		l[rel], err = describe(name, &st)
		if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
			if first, ok := inodes[st.Ino]; ok {
				l[rel] += " same as " + first
			} else {
				inodes[st.Ino] = rel
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func describe(name string, st *unix.Stat_t) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "%o %d:%d %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		content, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, " %d bytes %x", len(content), sha256.Sum256(content))
		if st.Size >= 1<<20 && st.Blocks*512 < st.Size/2 {
			b.WriteString(" sparse")
		}
	case unix.S_IFLNK:
		target, err := os.Readlink(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, " -> %q", target)
		return b.String(), nil
	case unix.S_IFDIR:
	default:
		return b.String(), nil
	}
	attrs, err := xattrs(name)
	if err != nil {
		return "", err
	}
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		fmt.Fprintf(&b, " %s=%x", k, attrs[k])
	}
	return b.String(), nil
}

func xattrs(name string) (map[string][]byte, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(name, buf)
	if err == unix.EOPNOTSUPP {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	attrs := map[string][]byte{}
	for key := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if key == "" || strings.HasPrefix(key, "security.selinux") {
			continue
		}
		value := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(name, key, value)
		if err != nil {
			return nil, err
		}
		attrs[key] = value[:n]
	}
	return attrs, nil
}

// Compare reports every difference.
func Compare(t testing.TB, want, got Listing) {
	t.Helper()
	for _, rel := range slices.Sorted(maps.Keys(want)) {
		if g, ok := got[rel]; !ok {
			t.Errorf("%.80q is missing", rel)
		} else if g != want[rel] {
			t.Errorf("%.80q\n got %s\nwant %s", rel, g, want[rel])
		}
	}
	for rel := range got {
		if _, ok := want[rel]; !ok {
			t.Errorf("%.80q was not in the source", rel)
		}
	}
}

// withoutPlanted drops the attribute that must not be carried from a listing.
func (l Listing) withoutPlanted() Listing {
	out := Listing{}
	planted := fmt.Sprintf(" user.overlay.planted=%x", "../../etc")
	for rel, s := range l {
		out[rel] = strings.Replace(s, planted, "", 1)
	}
	return out
}
