package nsexec

import (
	"os"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

func defaultFilter(t testing.TB) []byte {
	t.Helper()
	f, err := seccomp.Filter(policy.SandboxPolicy{}.Normalize())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestRootHoldsOnlyThePlan(t *testing.T) {
	got := sh(t, "cd /; echo *")
	for _, name := range strings.Fields(got) {
		switch name {
		case "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr":
		default:
			t.Errorf("the sandbox's root holds %q", name)
		}
	}
	if got := sh(t, "echo /etc/* /tmp/* /dev/shm/*"); got != "/etc/passwd /tmp/* /dev/shm/*" {
		t.Errorf("unexpected content: %s", got)
	}
}

func TestPIDOneIsOutOfReach(t *testing.T) {
	for _, at := range []string{"/proc/1", "/proc/1/root/", "/proc/1/exe", "/proc/1/cwd/", "/proc/1/fd/0", "/proc/1/mem", "/proc/1/environ", "/proc/1/cmdline", "/proc/1/maps"} {
		if got := sh(t, "if [ -e "+at+" ] || cat "+at+" 2>/dev/null; then echo reached; fi"); got != "" {
			t.Errorf("%s: %s", at, got)
		}
	}
}

// The window between the Worker's start and the init's is short: race it. Two
// seconds of a program that does nothing but look.
func TestPIDOneIsNeverSeen(t *testing.T) {
	for range 30 {
		out := sh(t, `i=0; while [ $i -lt 300 ]; do i=$((i+1)); if [ -e /proc/1 ]; then echo seen; fi; done`)
		if out != "" {
			t.Fatal("PID 1 was seen")
		}
	}
}

func TestPIDOneCannotBeTraced(t *testing.T) {
	// ptrace(PTRACE_SEIZE, 1), then process_vm_readv of it.
	out := sh(t, `perl -e 'my $i=0; while ($i++ < 20000) { if (syscall(101, 0x4206, 1, 0, 0) == 0) { print "traced"; exit } if (open(F,"<","/proc/1/mem")) { print "opened"; exit } }'`)
	if out != "" {
		t.Fatalf("PID 1 was %s", out)
	}
}

func TestNoPrivileges(t *testing.T) {
	s := newSpec("/bin/cat", "/proc/self/status")
	s.Filter = defaultFilter(t)
	out, _ := run(t, s)
	for _, line := range []string{"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000",
		"CapAmb:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2", "SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000",
		"Uid:\t1000\t1000\t1000\t1000", "Gid:\t1000\t1000\t1000\t1000", "NSpid:\t2", "TracerPid:\t0"} {
		if !strings.Contains(out, line+"\n") {
			t.Errorf("status lacks %q:\n%s", line, out)
		}
	}
	if os.Geteuid() == 0 && !strings.Contains(out, "Groups:\t \n") {
		t.Errorf("supplementary groups are left:\n%s", out)
	}
}

func TestCannotBecomeRoot(t *testing.T) {
	out := sh(t, `perl -e '$<=0; $>=0; print "$<$>"'; su -c id root </dev/null 2>/dev/null && echo su; unshare -r id 2>/dev/null; true`)
	if strings.Contains(out, "su") || !strings.HasPrefix(out, "10001000") {
		t.Errorf("got %q", out)
	}
}

func TestOnlyThreeDescriptors(t *testing.T) {
	// An inheritable descriptor of the launcher, which every exec would pass on.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	inherit(t, r)
	inherit(t, w)
	s := newSpec("/bin/sh", "-c", "echo /proc/self/fd/*")
	s.Hold = []*os.File{w}
	out, _ := run(t, s)
	// sh itself opens nothing while it expands; 3 is the directory that it reads.
	if got := strings.Fields(strings.ReplaceAll(out, "/proc/self/fd/", "")); len(got) > 4 || strings.Join(got[:3], "") != "012" {
		t.Errorf("descriptors: %v", got)
	}
}

func TestKernelSettingsAreReadOnly(t *testing.T) {
	for _, f := range []string{"/proc/sys/kernel/hostname", "/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory",
		"/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/proc/self/uid_map", "/proc/self/setgroups"} {
		if got := sh(t, "(echo 1 > "+f+") 2>/dev/null && echo written; true"); got != "" {
			t.Errorf("%s was %s", f, got)
		}
	}
}

func TestMountsAreReadOnlyPrivateAndNoSuid(t *testing.T) {
	if got := sh(t, "touch /x /usr/x /etc/x /dev/x /etc/passwd 2>/dev/null; chmod 777 / 2>/dev/null; ls /x /usr/x /etc/x /dev/x 2>/dev/null; true"); got != "" {
		t.Errorf("written: %s", got)
	}
	for _, line := range strings.Split(sh(t, "cat /proc/self/mountinfo"), "\n") {
		if strings.Contains(line, "shared:") || strings.Contains(line, "master:") {
			t.Errorf("mount propagation is not private: %s", line)
		}
		if f := strings.Fields(line); f[4] == "/" && !strings.HasPrefix(f[5], "ro,") {
			t.Errorf("not read-only: %s", line)
		}
		if f := strings.Fields(line); !strings.HasPrefix(f[4], "/dev/") && !strings.Contains(f[5], "nosuid") {
			t.Errorf("not nosuid: %s", line)
		}
	}
	if got := sh(t, "mount -t tmpfs x /tmp 2>/dev/null && echo mounted; umount /proc 2>/dev/null && echo unmounted; true"); got != "" {
		t.Errorf("the Worker %s", got)
	}
}

func TestPIDOneSurvivesSignalsFromInside(t *testing.T) {
	if got := sh(t, "for s in 9 15 19 11 6 1 2 64; do kill -$s 1 2>/dev/null; done; sleep 0.1; echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
}

func TestNoHostProcessIsVisible(t *testing.T) {
	if got := sh(t, "cd /proc; echo [0-9]*"); got != "2" {
		t.Errorf("processes: %s", got)
	}
}

func TestNetworkIsLoopbackOnly(t *testing.T) {
	out := sh(t, "cat /proc/net/dev")
	if n := strings.Count(out, "\n"); n != 2 || !strings.Contains(out, "lo:") {
		t.Errorf("interfaces:\n%s", out)
	}
	if got := sh(t, "cat /proc/net/unix | wc -l"); got != "1" {
		t.Errorf("the host's unix sockets are visible: %s", got)
	}
}

func TestSymlinkedSourceBeneathIsRefused(t *testing.T) {
	dir := sandboxDir(t)
	if err := os.Symlink("/etc", dir+"/evil"); err != nil {
		t.Fatal(err)
	}
	for _, beneath := range []string{"evil", "evil/ssl"} {
		s := newSpec("true")
		s.Plan = systemPlan(mounts.Bind{Target: "/ws", Source: mounts.Source{Path: dir, Beneath: beneath}})
		_, _, err := tryRun(t, s)
		wantCode(t, err, policy.CodeMountFailed)
		if strings.Contains(policy.AsDiagnostic(err).Message, dir) {
			t.Errorf("the message names a host path: %v", err)
		}
	}
}

func TestDeviceNodes(t *testing.T) {
	if got := sh(t, "cat /dev/null; head -c 3 /dev/zero | od -An -tx1 | tr -d ' '; head -c 4 /dev/urandom | wc -c; (echo x > /dev/full) 2>/dev/null || echo full; ls -1 /dev | tr '\n' ' '"); got != "000000\n4\nfull\nfd full null ptmx pts random shm stderr stdin stdout tty urandom zero" {
		t.Errorf("got %q", got)
	}
}

func TestSharedMemoryIsWritableAndBounded(t *testing.T) {
	got := sh(t, "cd /dev/shm && echo '#!/bin/sh' >x && chmod 755 x && (./x 2>/dev/null || echo noexec); (head -c 64M /dev/zero >big) 2>/dev/null || echo full; touch ../x ../../x 2>/dev/null || echo ro; stat -c %a .")
	if got != "noexec\nfull\nro\n1777" {
		t.Errorf("got %q", got)
	}
}
