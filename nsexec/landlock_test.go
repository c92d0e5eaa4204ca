package nsexec

import (
	"fmt"
	"net"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

func TestLandlockByABI(t *testing.T) {
	const old = fsExecute | fsWriteFile | fsRemoveDir | fsRemoveFile | fsMakeChar | fsMakeDir | fsMakeReg | fsMakeSock | fsMakeFifo | fsMakeBlock | fsMakeSym | fsRefer
	scopes := uint64(scopeAbstractUnixSocket | scopeSignal)
	for _, test := range []struct {
		abi    int
		mounts bool
		want   rulesetAttr
	}{
		{abi: 0}, {abi: 1}, {abi: 5, mounts: true},
		{abi: 2, want: rulesetAttr{fs: old}},
		{abi: 3, want: rulesetAttr{fs: old | fsTruncate}},
		{abi: 4, want: rulesetAttr{fs: old | fsTruncate}},
		{abi: 5, want: rulesetAttr{fs: old | fsTruncate | fsIoctlDev}},
		{abi: 6, want: rulesetAttr{fs: old | fsTruncate | fsIoctlDev, scoped: scopes}},
		{abi: 6, mounts: true, want: rulesetAttr{scoped: scopes}},
		{abi: 99, want: rulesetAttr{fs: old | fsTruncate | fsIoctlDev, scoped: scopes}},
	} {
		l := &Landlock{Mounts: test.mounts}
		if got := l.restricts(test.abi); got != test.want || l.Applies(test.abi) != (test.want != rulesetAttr{}) {
			t.Errorf("ABI %d, mounts %v: %+v, want %+v", test.abi, test.mounts, got, test.want)
		}
	}
}

// The attacks of a Worker in whose mount plan something is writable that should
// not be. Each succeeds without Landlock.
func TestAttackBehindTheMounts(t *testing.T) {
	testenv.NeedLandlock(t, 6)
	host, err := net.Listen("unix", "@nsexec-"+policy.NewID(""))
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	for _, attack := range []struct{ name, script string }{
		{"make", "echo x >/oops/new"},
		{"change", "echo x >>/oops/old"},
		{"truncate", "truncate -s 0 /oops/old"},
		{"remove", "rm /oops/old"},
		{"directory", "mkdir /oops/d"},
		{"rename over", "mv /tmp/mine /oops/old"},
		{"link", "ln -s x /oops/l"},
		{"fifo", "mkfifo /oops/f"},
		{"mount", "unshare -rm mount -t tmpfs none /tmp"},
		{"signal outside", "kill -0 1"},
		{"abstract socket", `python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect("\0` + host.Addr().String()[1:] + `")'`},
	} {
		t.Run(attack.name, func(t *testing.T) {
			result := func(l *Landlock) int {
				s := newSpec("/bin/sh", "-c", "touch /tmp/mine; "+attack.script)
				s.HostNetwork = true
				s.Plan = systemPlan(mounts.Tmpfs{Target: "/oops", Mode: 0o777}, mounts.File{Target: "/oops/old", Mode: 0o666, Content: []byte("old")})
				s.Landlock = l
				out, o := run(t, s)
				t.Logf("%s", out)
				return o.ExitCode
			}
			if code := result(nil); code != 0 {
				t.Errorf("without Landlock: exit %d: this proves nothing", code)
			}
			if code := result(&Landlock{Writable: []string{"/tmp"}}); code == 0 {
				t.Error("with Landlock it succeeds too")
			}
		})
	}
}

// Until its first exec the Worker's process is a second one of the launcher's
// memory, with the launcher's program as its /proc/self/exe (CVE-2019-5736).
func TestAttackLauncherProgram(t *testing.T) {
	testenv.NeedLandlock(t, 2)
	for _, name := range []string{"/proc/self/exe", "/proc/thread-self/exe", "/script"} {
		spec := func(l *Landlock) *Spec {
			s := newSpec(name)
			s.Env = append(s.Env, "NSEXEC_TEST_ROLE=launchers-program")
			s.Plan = systemPlan(mounts.File{Target: "/script", Mode: 0o755, Content: []byte("#!/proc/self/exe\n")})
			s.Landlock = l
			return s
		}
		if out, o, err := tryRun(t, spec(nil)); err != nil || o.ExitCode != 0 || out != "the launcher's program\n" {
			t.Errorf("%s without Landlock: %q %+v %v: this proves nothing", name, out, o, err)
		}
		out, _, err := tryRun(t, spec(&Landlock{Writable: []string{"/tmp"}}))
		if err == nil {
			t.Errorf("%s with Landlock: %q", name, out)
			continue
		}
		wantCode(t, err, policy.CodeCommandNotExecutable)
	}
}

func init() {
	roles["launchers-program"] = func() { fmt.Println("the launcher's program") }
}

// What work needs goes on under Landlock.
func TestLandlockLetsWork(t *testing.T) {
	testenv.NeedLandlock(t, 2)
	const script = `set -e; cd /tmp
mkdir a b; echo x >a/f; mv a/f b/g; ln b/g a/h; truncate -s 0 b/g; mkfifo p; ln -s b l; rm -r a
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("s")'
echo x >/dev/null; echo 5 >/proc/self/oom_score_adj; head -c 1 /dev/urandom >/dev/shm/r
python3 -c 'import os; f = os.memfd_create("x"); os.write(f, open("/usr/bin/true", "rb").read()); os.execve(f, ["true"], {})'
printf '#!/usr/bin/env sh\n:' >s.sh; chmod 755 s.sh; ./s.sh; cp /usr/bin/true t; ./t; /lib64/ld-linux-x86-64.so.2 /usr/bin/true
sleep 50 & kill $!; cat /usr/bin/env >/dev/null; echo fine`
	s := newSpec("/bin/sh", "-c", script)
	s.Landlock = &Landlock{Writable: []string{"/tmp", "/dev/shm"}}
	if out, o := run(t, s); o.ExitCode != 0 || out != "fine\n" {
		t.Errorf("%q %+v", out, o)
	}
	s = newSpec("/bin/sh", "-c", "unshare -rm mount -t tmpfs none /tmp && echo mounted")
	s.Landlock = &Landlock{Mounts: true}
	testenv.NeedLandlock(t, 6)
	if out, o := run(t, s); out != "mounted\n" {
		t.Errorf("%q %+v", out, o)
	}
	s = newSpec("true")
	s.Landlock = &Landlock{Writable: []string{"/missing"}}
	_, _, err := tryRun(t, s)
	wantCode(t, err, policy.CodeLaunchFailed)
}
