package vm

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/tests/internal/disk"
	"yoi.dev/yoi-runtime/tests/internal/rig"
	"yoi.dev/yoi-runtime/tests/internal/vm/agent"
)

const (
	program = "qemu-system-x86_64"
	// diskSize is what the machine's disk is said to have. Its file is sparse.
	diskSize = 2 << 30
	// patience bounds what takes seconds on a machine that has the cores for itself.
	patience = 5 * time.Minute
)

// Machine is one virtual machine as one test sees it.
type Machine struct {
	t testing.TB
	*state
}

// state is what all tests of a machine share.
type state struct {
	root testing.TB // outlives every subtest
	dir  string     // of its files on the host
	tree string
	k    kernel
	disk *disk.Disk

	qemu *running // nil when it is off
}

// running is the machine between Boot and LosePower.
type running struct {
	kill   func() error
	killed atomic.Bool   // by us
	dead   chan struct{} // closed when qemu is gone
	served chan struct{} // closed when the disk has no client any more
	agent  *agent.Client
}

// New makes a machine whose /usr and /etc are the host's below those of tree, and boots
// it. It is killed when the test ends.
func New(t testing.TB, tree string) *Machine {
	t.Helper()
	testenv.Root(t) // qemu reads all of the host's /etc for it
	if _, err := exec.LookPath(program); err != nil {
		t.Fatalf("there is no emulator for the virtual machine: run make setup, which installs it: %v", err)
	}
	k, err := findKernel()
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{t, &state{root: t, dir: t.TempDir(), tree: tree, k: k}}
	if err := m.prepare(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.off()
		m.disk.Close()
	})
	m.Boot()
	return m
}

// For is the machine for a subtest, which fails by itself.
func (m *Machine) For(t testing.TB) *Machine { return &Machine{t, m.state} }

func (m *Machine) path(name string) string { return filepath.Join(m.dir, name) }

// prepare makes the initrd and an empty disk.
func (m *Machine) prepare() error {
	module, err := rig.ModuleDir()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", m.path("guest"), "./tests/internal/vm/guest")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	image, err := initrd(m.path("guest"), m.k.modules)
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(m.path("initrd"), image, 0o600), os.WriteFile(m.path("disk"), nil, 0o600), os.Truncate(m.path("disk"), diskSize)); err != nil {
		return err
	}
	// All is laid out now, so that no kernel thread writes behind the tests' back.
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", "-b", fmt.Sprint(disk.BlockSize), "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", m.path("disk")).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4: %w\n%s", err, out)
	}
	m.disk, err = disk.Open(m.path("disk"))
	return err
}

// Boot starts the machine, which must be off, and waits until its queue of jobs is
// empty.
func (m *Machine) Boot() {
	m.t.Helper()
	if m.qemu != nil {
		m.t.Fatal("the machine is running")
	}
	begin := time.Now()
	m.start()
	out := m.Run("systemctl", "is-system-running", "--wait")
	if s := strings.TrimSpace(out.Stdout); s != "running" {
		m.t.Fatalf("systemd is %q\n%s", s, m.Run("systemctl", "--no-pager", "--failed").Stdout)
	}
	m.t.Logf("booted in %v", time.Since(begin).Round(time.Second))
}

// start has the machine's agent answer. An emulator that ends by itself before that, as
// one in some twenty-five was seen to, has run nothing that is tested: what it leaves is
// told, and it is started once more.
func (m *Machine) start() {
	m.t.Helper()
	err := m.tryStart()
	if err != nil && m.endedAlone() {
		m.t.Logf("the emulator ended before the machine had begun: %v\n%s", err, m.console())
		m.off()
		err = m.tryStart()
	}
	if err != nil {
		m.off()
		m.t.Fatalf("the machine did not start: %v\n%s", err, m.console())
	}
}

func (m *Machine) endedAlone() bool {
	if m.qemu == nil || m.qemu.killed.Load() {
		return false
	}
	select {
	case <-m.qemu.dead:
		return true
	case <-time.After(10 * time.Second):
		return false
	}
}

func (m *Machine) tryStart() error {
	disks, port, err := m.launch()
	if err != nil {
		return err
	}
	r := m.qemu
	go func() {
		defer close(r.served)
		if err := m.disk.Serve(disks); err != nil {
			m.root.Errorf("the machine's disk: %v", err)
		}
	}()
	watch := time.AfterFunc(patience, func() { _ = r.kill() })
	defer watch.Stop()
	r.agent, err = agent.Connect(port)
	return err
}

// pair is a connection of which qemu gets one end as a descriptor, so that it has no
// name that anybody else could use.
func pair() (here net.Conn, there *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	f := os.NewFile(uintptr(fds[0]), "here")
	defer f.Close()
	there = os.NewFile(uintptr(fds[1]), "there")
	here, err = net.FileConn(f)
	if err != nil {
		there.Close()
	}
	return here, there, err
}

// launch starts qemu in a thread whose end would end it (PR_SET_PDEATHSIG).
func (m *Machine) launch() (disks, port net.Conn, err error) {
	disks, diskEnd, err := pair()
	if err != nil {
		return nil, nil, err
	}
	defer diskEnd.Close()
	port, portEnd, err := pair()
	if err != nil {
		disks.Close()
		return nil, nil, err
	}
	defer portEnd.Close()
	r := &running{dead: make(chan struct{}), served: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer close(r.dead)
		var out bytes.Buffer
		cmd := exec.Command(program, m.arguments()...)
		cmd.ExtraFiles = []*os.File{diskEnd, portEnd} // 3 and 4
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.Env = []string{"TMPDIR=" + m.dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setsid: true}
		err := cmd.Start()
		if err == nil {
			r.kill = func() error {
				r.killed.Store(true)
				return cmd.Process.Kill()
			}
		}
		started <- err
		if err != nil {
			return
		}
		if err := cmd.Wait(); out.Len() > 0 || !r.killed.Load() {
			m.root.Logf("%s: %v %s", program, err, out.String())
		}
	}()
	if err := <-started; err != nil {
		disks.Close()
		port.Close()
		return nil, nil, err
	}
	m.qemu = r
	return disks, port, nil
}

// arguments are the machine: two emulated processors, no network, no device that is
// not needed. The disk's cache is its own alone (cache=none would be none of qemu's
// either, but it would want O_DIRECT).
func (m *Machine) arguments() []string {
	args := []string{
		"-machine", "q35", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max", "-smp", "2", "-m", "1536",
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "file:" + m.path("console"),
		"-kernel", m.k.image, "-initrd", m.path("initrd"),
		"-append", "console=ttyS0 quiet panic=-1 mitigations=off random.trust_cpu=on rdinit=/init systemd.unified_cgroup_hierarchy=1 systemd.show_status=0 systemd.gpt_auto=0 systemd.log_target=kmsg",
		"-blockdev", "driver=nbd,node-name=disk,server.type=fd,server.str=3,cache.direct=off,cache.no-flush=off",
		"-device", fmt.Sprintf("virtio-blk-pci,drive=disk,write-cache=on,logical_block_size=%[1]d,physical_block_size=%[1]d", disk.BlockSize),
		"-chardev", "socket,id=agent,fd=4", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=agent,name=" + agent.Port,
	}
	for tag, dir := range map[string]string{"usr": "/usr", "etc": "/etc", "tree": m.tree} {
		args = append(args, "-fsdev", fmt.Sprintf("local,id=%s,path=%s,security_model=none,readonly=on,multidevs=remap", tag, dir),
			"-device", fmt.Sprintf("virtio-9p-pci,fsdev=%[1]s,mount_tag=%[1]s", tag))
	}
	return args
}

// console is the end of what the machine's kernel and first process said.
func (m *Machine) console() string {
	b, err := os.ReadFile(m.path("console"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}

// off takes the power away.
func (m *Machine) off() {
	if m.qemu == nil {
		return
	}
	_ = m.qemu.kill() // unless it is dead already: then its number may be another's
	<-m.qemu.dead
	<-m.qemu.served
	if m.qemu.agent != nil {
		m.qemu.agent.Close()
	}
	m.qemu = nil
}

// LosePower takes the machine's power away, and with it what its disk has not flushed,
// unless it survives.
func (m *Machine) LosePower(survives func() bool) {
	m.t.Helper()
	if m.qemu == nil {
		m.t.Fatal("the machine is off")
	}
	m.off()
	lost, err := m.disk.LosePower(survives)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Logf("the loss of power took %d blocks, behind %d flushes", lost, m.disk.Flushes())
}

// Result is what a command of the machine did.
type Result = rig.Output

// Run runs a command as root and waits for it.
func (m *Machine) Run(args ...string) Result {
	m.t.Helper()
	return m.RunAs("root", nil, args...)
}

// RunAs is Run as a user of the machine, with variables beside those of its login.
func (m *Machine) RunAs(user string, env []string, args ...string) Result {
	m.t.Helper()
	r, err := m.Try(user, env, args...)
	if err != nil {
		m.t.Fatalf("%v\n%s", err, m.console())
	}
	return r
}

// Try is RunAs of what may be cut off by a loss of power.
func (m *Machine) Try(user string, env []string, args ...string) (Result, error) {
	m.t.Helper()
	q := m.qemu
	if q == nil {
		return Result{}, errors.New("the machine is off")
	}
	watch := time.AfterFunc(patience, func() { q.agent.Close() })
	defer watch.Stop()
	r, err := q.agent.Do(agent.Request{Args: args, User: user, Env: env})
	if err != nil {
		return Result{}, fmt.Errorf("%q: %w", args, err)
	}
	return Result{T: m.t, What: strings.Join(args, " "), Code: r.Code, Stdout: string(r.Stdout), Stderr: string(r.Stderr)}, nil
}

// OK is Run of what must succeed, and its output.
func (m *Machine) OK(args ...string) string {
	m.t.Helper()
	return m.Run(args...).Want(0).Stdout
}

// Eventually waits for a condition of the machine that has no event to wait for.
func (m *Machine) Eventually(what string, cond func() bool) {
	m.t.Helper()
	rig.Await(m.t, what, patience, 50*time.Millisecond, cond)
}
