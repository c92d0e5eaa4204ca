package mounts

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func openDir(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestOpenBeneath(t *testing.T) {
	dir := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(dir+"/in/a/b", 0o755), os.WriteFile(dir+"/secret", nil, 0o600), os.WriteFile(dir+"/in/a/f", nil, 0o600),
		os.Symlink("..", dir+"/in/up"), os.Symlink("a", dir+"/in/link"), os.Symlink("/", dir+"/in/abs"), os.Symlink("/proc/self/root", dir+"/in/magic"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	in := openDir(t, dir+"/in")
	for _, rel := range []string{"", ".", "a", "a/b", "a/f"} {
		f, err := OpenBeneath(in, rel, unix.O_RDONLY)
		if err != nil {
			t.Errorf("%q: %v", rel, err)
			continue
		}
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("%q is not close-on-exec", rel)
		}
		f.Close()
	}
	for rel, want := range map[string]error{
		"..": unix.EXDEV, "../secret": unix.EXDEV, "a/../../secret": unix.EXDEV, "/etc": unix.EXDEV, "/": unix.EXDEV,
		"up": unix.ELOOP, "link/f": unix.ELOOP, "abs/etc": unix.ELOOP, "magic": unix.ELOOP, "none": policy.CodeNotFound, "a/f/x": unix.ENOTDIR,
	} {
		f, err := OpenBeneath(in, rel, unix.O_PATH)
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", rel, err, want)
		}
		if err != nil && strings.Contains(policy.AsDiagnostic(err).Message, dir) {
			t.Errorf("the message names a path: %v", err)
		}
	}
	f, err := OpenBeneathMode(in, "new", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v %v", st.Mode(), err)
	}
}

func TestUserNS(t *testing.T) {
	own := []IDMap{{Inside: 1000, Outside: uint32(os.Geteuid()), Count: 1}}
	ownGroup := []IDMap{{Inside: 1000, Outside: uint32(os.Getegid()), Count: 1}}
	ns, err := UserNS(own, ownGroup)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	self, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", ns.Fd())); err != nil || !strings.HasPrefix(got, "user:[") || got == self {
		t.Errorf("%s %v", got, err)
	}
	if _, err := UserNS(nil, nil); !errors.Is(err, policy.CodePolicyInvalid) {
		t.Errorf("empty maps: %v", err)
	}
	if _, err := UserNS([]IDMap{{0, 0, 1}, {0, 0, 1}}, ownGroup); !errors.Is(err, policy.CodeNamespacesUnavailable) {
		t.Errorf("a map that overlaps itself: %v", err)
	}
	var ru unix.Rusage
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, &ru); err != unix.ECHILD {
		t.Errorf("a child is left: %d %v", pid, err)
	}
}

func TestCloneDetached(t *testing.T) {
	testenv.Privileged(t)
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/top", 0o755), os.WriteFile(dir+"/top/f", []byte("x"), 0o644), os.Symlink("top", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir+"/top/f", 5000, 5001); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile("/proc/self/mountinfo")
	ids, err := UserNS([]IDMap{{5000, 70000, 1}}, []IDMap{{5001, 70001, 1}})
	if err != nil {
		t.Fatal(err)
	}
	defer ids.Close()
	m, err := CloneDetached(openDir(t, dir), "top", Attr{ReadOnly: true, NoExec: true}, ids, false)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(m.Fd()), "f", &st, 0); err != nil || st.Uid != 70000 || st.Gid != 70001 {
		t.Errorf("owner %d:%d %v", st.Uid, st.Gid, err)
	}
	if _, err := unix.Openat(int(m.Fd()), "new", unix.O_CREAT|unix.O_WRONLY, 0o600); err != unix.EROFS {
		t.Errorf("a file was made: %v", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(m.Fd()), &fs); err != nil || fs.Flags&unix.ST_NOEXEC == 0 {
		t.Errorf("flags %x %v", fs.Flags, err)
	}
	if after, _ := os.ReadFile("/proc/self/mountinfo"); string(after) != string(before) {
		t.Error("a mount is visible on the host")
	}
	if _, err := CloneDetached(openDir(t, dir), "link", Attr{}, nil, false); !errors.Is(err, unix.ELOOP) {
		t.Errorf("through a link: %v", err)
	}
	if _, err := CloneDetached(openDir(t, dir), "none", Attr{}, nil, false); !errors.Is(err, policy.CodeNotFound) {
		t.Errorf("absent: %v", err)
	}
	proc := openDir(t, "/proc")
	if _, err := CloneDetached(proc, "", Attr{}, ids, false); !errors.Is(err, policy.CodeIDMapUnavailable) {
		t.Errorf("an idmapped proc: %v", err)
	}
}

func TestAsOrdinaryUser(t *testing.T) {
	testenv.Privileged(t)
	c := exec.Command("/proc/self/exe", "-test.run=^(TestUserNS|TestValidate)$")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
