package cowtest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// when is the awkward tree's time: nanoseconds that no rounding leaves alone.
var when = time.Unix(1_234_567_890, 123_456_789)

// OddNames are file names that programs stumble over.
var OddNames = []string{
	"plain", "-rf", "--help", "new\nline", "tab\t", "sp ace", "\xff\xfe not UTF-8", "ünïcode", "Case", "case", "CASE",
	strings.Repeat("x", 255), "...", ".hidden", "back\\slash", "quote\"'", "*?[]", "\x01\x1b[31m", "colon:comma,", "trailing ",
}

// PlantTree fills dir with everything that has to arrive exactly. As root that
// is more: foreign owners, capabilities, directories that nobody may enter.
func PlantTree(t testing.TB, dir string) {
	t.Helper()
	p := planter{t}
	for i, name := range OddNames {
		p.file(filepath.Join(dir, name), strings.Repeat(name, i+1), 0o644)
	}
	p.modes(dir)
	p.links(dir)
	p.sparse(dir)
	p.attributes(dir)
	p.dir(filepath.Join(dir, "empty"), 0o755)
	for _, name := range OddNames {
		p.file(filepath.Join(p.dir(filepath.Join(dir, "dirs", name), 0o755), name), name, 0o755)
	}
	deep := dir
	for range 300 {
		deep = p.dir(filepath.Join(deep, "d"), 0o755)
	}
	p.file(filepath.Join(deep, "bottom"), "bottom", 0o644)
	p.times(dir)
	p.immutable(filepath.Join(dir, "modes", "0640"))
}

// PlantSpecial adds files that no strategy copies one by one, and returns how many.
func PlantSpecial(t testing.TB, dir string) int {
	t.Helper()
	p := planter{t}
	p.dir(filepath.Join(dir, "special"), 0o755)
	p.must(unix.Mkfifo(filepath.Join(dir, "special", "fifo"), 0o644))
	p.must(unix.Mknod(filepath.Join(dir, "special", "socket"), unix.S_IFSOCK|0o644, 0))
	if os.Geteuid() != 0 {
		return 2
	}
	p.must(unix.Mknod(filepath.Join(dir, "special", "null"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))))
	return 3
}

type planter struct{ t testing.TB }

func (p planter) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p planter) dir(name string, mode os.FileMode) string {
	p.t.Helper()
	p.must(os.MkdirAll(name, 0o755))
	p.must(os.Chmod(name, mode))
	return name
}

func (p planter) file(name, content string, mode uint32) string {
	p.t.Helper()
	p.must(os.WriteFile(name, []byte(content), 0o600))
	p.must(unix.Chmod(name, mode))
	return name
}

func (p planter) modes(dir string) {
	d := p.dir(filepath.Join(dir, "modes"), 0o755)
	for name, mode := range map[string]uint32{"0400": 0o400, "0444": 0o444, "0777": 0o777, "0640": 0o640, "setuid": 0o4755, "setgid": 0o2755, "sticky": 0o1644} {
		p.file(filepath.Join(d, name), name, mode)
	}
	p.file(filepath.Join(p.dir(filepath.Join(d, "read-only"), 0o755), "file"), "x", 0o444)
	p.must(os.Chmod(p.dir(filepath.Join(d, "read-only"), 0o755), 0o555))
	p.must(unix.Chmod(p.dir(filepath.Join(d, "shared"), 0o755), 0o3777))
	p.file(filepath.Join(d, "shared", "file"), "x", 0o644)
	if os.Geteuid() != 0 {
		return
	}
	p.file(filepath.Join(p.dir(filepath.Join(d, "closed", "inner"), 0o755), "file"), "x", 0)
	p.must(os.Chmod(filepath.Join(d, "closed"), 0))
	for _, name := range []string{"0640", "setuid", "shared", "shared/file"} {
		p.must(os.Chown(filepath.Join(d, name), 12345, 54321))
	}
	p.must(unix.Chmod(filepath.Join(d, "setuid"), 0o6755)) // chown took it
	// A version 2 vfs_cap_data: cap_net_bind_service, permitted and effective.
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	p.must(unix.Setxattr(filepath.Join(d, "0777"), "security.capability", capability, 0))
}

func (p planter) links(dir string) {
	d := p.dir(filepath.Join(dir, "links", "sub"), 0o755)
	up := filepath.Dir(d)
	for name, target := range map[string]string{
		"dangling": "nowhere", "absolute": "/etc/passwd", "up": "../../../..", "bytes": "\xff\n", "long": strings.Repeat("y/", 500), "loop": "loop",
	} {
		p.must(os.Symlink(target, filepath.Join(up, name)))
	}
	p.must(os.Link(p.file(filepath.Join(up, "hard-a"), "hard", 0o644), filepath.Join(up, "hard-b")))
	p.must(os.Link(filepath.Join(up, "hard-a"), filepath.Join(d, "hard-c")))
	p.must(os.Link(filepath.Join(up, "dangling"), filepath.Join(d, "hard-symlink")))
}

func (p planter) sparse(dir string) {
	d := p.dir(filepath.Join(dir, "sparse"), 0o755)
	for name, at := range map[string][]int64{"middle": {4 << 20}, "ends": {0, 7 << 20}, "only-hole": nil} {
		f, err := os.Create(filepath.Join(d, name))
		p.must(err)
		for _, off := range at {
			_, err := f.WriteAt(bytes.Repeat([]byte(name), 8<<10), off)
			p.must(err)
		}
		p.must(f.Truncate(8<<20 + 1))
		p.must(f.Sync())
		p.must(f.Close())
	}
	p.file(filepath.Join(d, "dense"), strings.Repeat("0123456789", 100_000), 0o644)
	p.file(filepath.Join(d, "none"), "", 0o644)
}

// ACLs as the kernel stores them, acl(5): version, then tag, perm, id each.
var (
	accessACL  = []byte("\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x07\x00\x39\x30\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x07\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff")
	defaultACL = accessACL
)

func (p planter) attributes(dir string) {
	d := p.dir(filepath.Join(dir, "attributes", "inner"), 0o755)
	up := filepath.Dir(d)
	f := p.file(filepath.Join(up, "file"), "x", 0o644)
	for _, name := range []string{f, up, d, p.file(filepath.Join(d, "read-only"), "x", 0o644)} {
		p.must(unix.Setxattr(name, "user.empty", nil, 0))
		p.must(unix.Setxattr(name, "user.binary", []byte{0, 1, 0xff, '\n'}, 0))
		p.must(unix.Setxattr(name, "user.overlay.planted", []byte("../../etc"), 0))
	}
	p.must(unix.Chmod(filepath.Join(d, "read-only"), 0o444))
	p.must(unix.Setxattr(f, "system.posix_acl_access", accessACL, 0))
	p.must(unix.Setxattr(up, "system.posix_acl_default", defaultACL, 0))
	p.file(filepath.Join(up, "heir"), "made under a default ACL", 0o640)
}

// immutable sets FS_IMMUTABLE_FL as root (chattr(1), +i), last of all: the file
// is to be read and cloned from, never opened for writing or linked to.
func (p planter) immutable(name string) {
	if os.Geteuid() != 0 {
		return
	}
	f, err := os.Open(name)
	p.must(err)
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	p.must(err)
	p.must(unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|unix.STATX_ATTR_IMMUTABLE))
}

// times sets every mtime, deepest first.
func (p planter) times(dir string) {
	var all []string
	p.must(filepath.WalkDir(dir, func(name string, _ os.DirEntry, err error) error {
		all = append(all, name)
		return err
	}))
	for i := len(all) - 1; i >= 0; i-- {
		ts := unix.NsecToTimespec(when.Add(time.Duration(i) * time.Millisecond).UnixNano())
		p.must(unix.UtimesNanoAt(unix.AT_FDCWD, all[i], []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW))
	}
}
