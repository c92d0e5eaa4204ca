package rig

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// Ordinary is the uid of the ordinary user of the suites: no name, no rights.
const Ordinary = 64321

// Place is a directory of one user's on one file system.
type Place struct {
	FS  string
	UID int
	Dir string
}

func (p Place) String() string {
	if p.UID == 0 {
		return p.FS + "/root"
	}
	return p.FS + "/user"
}

// sizes are large enough for every suite's small repositories, in MiB.
var sizes = map[string]int{"ext4": 256, "xfs": 400, "btrfs": 400}

// NewPlace makes a file system of its own: "ext4", "xfs" or "btrfs"; "disk" is
// a directory on the machine's own. The directory has mode 0700.
func NewPlace(t testing.TB, fs string, uid int) Place {
	t.Helper()
	return NewPlaceOf(t, fs, uid, sizes[fs])
}

// NewPlaceOf is NewPlace with a size in MiB.
func NewPlaceOf(t testing.TB, fs string, uid, size int) Place {
	t.Helper()
	testenv.Root(t)
	top := ""
	if fs == "disk" {
		var err error
		if top, err = os.MkdirTemp("", "place"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeAll(t, top) })
		if err := os.Chmod(top, 0o755); err != nil {
			t.Fatal(err)
		}
	} else {
		o := testenv.FSOptions{}
		if fs == "ext4" {
			o.MkfsArgs = []string{"-m", "0"} // nothing reserved for root: full is full
		}
		top = testenv.FSWith(t, fs, size, o)
	}
	dir := filepath.Join(top, "home")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	return Place{FS: fs, UID: uid, Dir: dir}
}

func removeAll(t testing.TB, dir string) {
	t.Helper()
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}

// Give copies a repository into the place and gives it to the place's user.
func (p Place) Give(t testing.TB, r testenv.Repo) testenv.Repo {
	t.Helper()
	parent, err := os.MkdirTemp(p.Dir, "src")
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(parent, filepath.Base(r.Dir))
	Command(t, "cp", "-a", r.Dir, to)
	Command(t, "chown", "-hR", Owner(p.UID), parent)
	r.Dir = to
	return r
}

// Owner is uid and its group, as chown(1) takes them.
func Owner(uid int) string { return strconv.Itoa(uid) + ":" + strconv.Itoa(uid) }

// Yoi is the yoi program on a Runtime root of its own in the place.
func (p Place) Yoi(t testing.TB, tags ...string) Yoi {
	t.Helper()
	return Yoi{Program: Program(t, "yoi", tags...), Root: filepath.Join(p.Dir, "rt"), UID: p.UID, Dir: p.Dir, Home: p.Dir}
}

// Command runs a program of the machine's that must succeed.
func Command(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatal(fmt.Errorf("%s %q: %w\n%s", name, args, err, out))
	}
	return string(out)
}
