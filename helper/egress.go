package helper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/ledger"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
)

// EgressRequest asks for a network by an allowlist.
type EgressRequest struct {
	Network policy.NetworkPolicy `json:"network"`
	// Resolvers replace the host's name servers: ADDRESS:PORT.
	Resolvers []string `json:"resolvers,omitempty"`
	// Secrets are headers of the proxy's own; their values come beside the request,
	// for the proxy alone.
	Secrets []policy.Secret `json:"secrets,omitempty"`
	// Roots are certificate authorities, in PEM, in place of the system's.
	Roots []byte `json:"roots,omitempty"`
}

func (r *EgressRequest) hasSecrets() bool { return r != nil && len(r.Secrets) > 0 }

// reachesOut says that the launch needs a way to the host's network.
func (r LaunchRequest) reachesOut() bool { return r.HostNetwork || r.Egress != nil }

// The files of a Worker's metadata that yoi-egress writes.
const (
	EgressLog      = "egress.log"
	EgressCounters = "egress.counters"
	// EgressLost is there if yoi-egress ended before its Worker: from then on that
	// reached nothing.
	EgressLost = "egress.lost"
)

// roleAttr marks the record of a process that is not a Worker's own sandbox but one
// beside it, with a lock and an identity file named after the role.
const (
	roleAttr   = "role"
	roleEgress = "egress"
)

func isProxy(r ledger.Resource) bool {
	return r.Kind == ledger.KindProcess && r.Attrs[roleAttr] == roleEgress
}

// isWorker tells a Worker's own process record from its proxy's.
func isWorker(r ledger.Resource) bool {
	return r.Kind == ledger.KindProcess && r.Attrs[roleAttr] == ""
}

// proxyResource is what the ledger has of a launch's yoi-egress.
func (a *attempt) proxyResource() ledger.Resource {
	r := newResource(ledger.KindProcess, a.req.AllocationID, rootdir.Worker(a.req.WorkerID))
	r.Attrs = map[string]string{"worker": string(a.req.WorkerID), roleAttr: roleEgress}
	return r
}

// EgressFile is the path of one of them below the Runtime root.
func EgressFile(id policy.WorkerID, name string) string {
	return rootdir.Worker(id) + "/metadata/" + name
}

const opEgress = "helper.egress"

// egressAt is the program's place in its own sandbox.
const egressAt = "/yoi-egress"

// listen has the launch open the sockets of the Worker's network and start who
// serves them, before anything of the Worker's runs.
func (a *attempt) listen(ctx context.Context, s *nsexec.Spec) error {
	r := a.req.Egress
	if r == nil {
		return nil
	}
	sockets, err := egress.Sockets(r.Network, r.Secrets)
	if err != nil {
		return err
	}
	for _, k := range sockets {
		s.Listen = append(s.Listen, nsexec.Listen{Addr: k.Addr, UDP: k.UDP})
	}
	cfg := egress.Config{Network: r.Network, Sockets: sockets, Resolvers: r.Resolvers, Secrets: r.Secrets, Roots: r.Roots}
	s.Listening = func(fds []*os.File, worker *os.File) error { return a.startEgress(ctx, cfg, fds, worker) }
	return nil
}

// startEgress starts yoi-egress in a sandbox of its own: the last uid of the
// Worker's range, which the Worker cannot become; its executable and what the
// resolver reads as the only files; the host's network. Its PID 1 ends it with the
// Worker's, so whatever becomes of us it goes when the Worker does; and it holds a
// lock of its own, by which recovery knows it. If it goes first, the Worker's sockets
// go with it, and nobody opens others: there is no other way out.
func (a *attempt) startEgress(ctx context.Context, cfg egress.Config, sockets []*os.File, worker *os.File) error {
	unavailable := func(err error) error {
		return policy.Errorf(policy.CodeEgressUnavailable, opEgress, "yoi-egress could not be started").
			Because(errors.New(err.Error())) // its code is not the Worker's: that could have been executed
	}
	files, err := a.egressFiles()
	if err != nil {
		return err
	}
	files.Sockets, files.Values = sockets, a.files.Headers
	spec, err := a.egressSpec(worker)
	if err != nil {
		return err
	}
	if spec.Parked, err = a.proxyParked(spec); err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return unavailable(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "control")
	defer unix.Close(pair[0])
	spec.Stdio[0] = theirs
	err = egress.Send(pair[0], cfg, files)
	var p *nsexec.Process
	if err == nil {
		p, err = nsexec.Launch(ctx, spec)
	}
	theirs.Close()
	if err == nil {
		a.egress = p // whatever comes, endEgress has it
		// A program that hangs before it serves is as good as none.
		_ = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(egressStart / time.Second)})
		err = egress.Await(pair[0])
	}
	if err != nil {
		return unavailable(err)
	}
	return nil
}

// proxyParked has the program's PID 1 hold its lock, and writes down which process it
// is before the program runs: what attempt.parked does for the Worker's.
func (a *attempt) proxyParked(s *nsexec.Spec) (func(int, *os.File) error, error) {
	at := slices.IndexFunc(a.resources, isProxy)
	r := a.resources[at] // intend put it there
	lock, err := a.l.root.OpenFile(lockFile(r), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return nil, diskError(opEgress, err)
	}
	a.keep(lock)
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, policy.Errorf(policy.CodeLaunchFailed, opEgress, "the proxy's lock cannot be taken").Because(err)
	}
	s.Hold = append([]*os.File{lock}, s.Hold...)
	return func(pid int, _ *os.File) error {
		ident := a.l.processIdentity(pid)
		if err := a.l.writeIdentity(r, ident); err != nil {
			return diskError(opEgress, err)
		}
		return a.l.ledger.Done(r.ID, ident)
	}, nil
}

// watchProxy writes down that a live Worker's proxy has ended, so that whoever looks
// at the Worker learns why it reaches nothing. It returns when the proxy is gone.
func (l *Local) watchProxy(w *worker, ended func()) {
	ended()
	// The Worker's end comes before the proxy's unless that died by itself.
	if hasEnded(w.pidfd) {
		return
	}
	l.log.Warn("a worker's proxy has ended: the worker reaches nothing any more", "worker", w.id)
	f, err := l.root.OpenFile(EgressFile(w.id, EgressLost), unix.O_WRONLY|unix.O_CREAT, 0o600)
	if err != nil {
		l.log.Warn("that a worker's proxy has ended is not recorded", "worker", w.id, "error", err)
		return
	}
	f.Close()
}

// adoptProxy watches the proxy of a Worker that an earlier helper launched.
func (l *Local) adoptProxy(w *worker) {
	at := slices.IndexFunc(w.rs, isProxy)
	if at < 0 {
		return
	}
	w.proxyGone = make(chan struct{})
	pidfd := l.openProcess(w.rs[at])
	go func() {
		defer close(w.proxyGone)
		l.watchProxy(w, func() {
			if pidfd != nil {
				waitPidfd(pidfd)
				pidfd.Close()
			}
		})
	}()
}

// maxRoots bounds the certificate authorities of a request.
const maxRoots = 2 << 20

// egressStart is how long the program may take to its first word.
const egressStart = 10 * time.Second

// egressFiles makes the files that the program writes.
func (a *attempt) egressFiles() (f egress.Files, err error) {
	l := a.l
	meta, err := l.root.OpenDir(rootdir.Worker(a.req.WorkerID) + "/metadata")
	if err != nil {
		return f, diskError(opEgress, err)
	}
	defer meta.Close()
	for _, n := range []string{EgressLog, EgressCounters} {
		made, err := l.newFile(meta, n)
		if err != nil {
			return f, diskError(opEgress, err)
		}
		a.keep(made)
		switch n {
		case EgressLog:
			if _, err := unix.FcntlInt(made.Fd(), unix.F_SETFL, unix.O_APPEND); err != nil {
				return f, diskError(opEgress, err)
			}
			f.Log = made
		case EgressCounters:
			// Written, not truncated to its size: what is mapped must have its room.
			if _, err := made.Write(make([]byte, egress.CountersSize)); err != nil {
				return f, diskError(opEgress, err)
			}
			f.Counters = made
		}
	}
	return f, nil
}

func (a *attempt) egressSpec(worker *os.File) (*nsexec.Spec, error) {
	filter, err := seccomp.EgressFilter()
	if err != nil {
		return nil, err
	}
	program, err := a.egressProgram()
	if err != nil {
		return nil, err
	}
	host, err := a.l.hostRoot()
	if err != nil {
		return nil, err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, diskError(opEgress, err)
	}
	a.keep(null)
	ops := []mounts.Op{program}
	for _, name := range []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"} {
		if b := host.file(name); b != nil {
			ops = append(ops, mounts.File{Target: name, Mode: 0o444, Content: b})
		}
	}
	open := uint64(egressFilesMax)
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &own); err == nil && own.Max < open {
		open = own.Max // more takes a privilege, and connections wait for a descriptor
	}
	s := &nsexec.Spec{
		Argv: []string{egressAt}, Env: []string{"GOTRACEBACK=none"}, Plan: mounts.Plan{Ops: ops, RootBytes: 2 << 20, RootInodes: 64},
		Stdio: [3]*os.File{1: null, 2: null}, Filter: filter,
		Hostname: "egress", HostNetwork: a.files.Outside == nil, Network: a.files.Outside, DieWith: worker,
		Rlimits: []nsexec.Rlimit{
			{Resource: unix.RLIMIT_CORE},
			{Resource: unix.RLIMIT_NOFILE, Soft: open, Hard: open},
			{Resource: unix.RLIMIT_FSIZE, Soft: egress.MaxLog + 4096, Hard: egress.MaxLog + 4096},
		},
	}
	if a.l.privileged {
		// Two ids, since with one alone the kernel lets nobody leave its groups
		// (user_namespaces(7)); the program is the last.
		m := []nsexec.IDMap{{Inside: workerID - 1, Outside: a.idRange.base + rangeSize - 2, Count: 2}}
		s.UIDMap, s.GIDMap = m, m
		s.Hold = []*os.File{a.idRange.lock}
	}
	return s, nil
}

// egressFilesMax is for two descriptors and a pipe each way of every connection that
// a policy may have.
const egressFilesMax = 8*policy.MaxConnections + 1024

// egressProgram is the one program of the sandbox. Root opens it here, since the ids
// that it will have may not walk to where it lies.
func (a *attempt) egressProgram() (mounts.Op, error) {
	bind := mounts.Bind{Target: egressAt, IsFile: true, Attr: mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}}
	missing := func(err error) error {
		return policy.Errorf(policy.CodeEgressUnavailable, opEgress, "the program yoi-egress is not there").Because(err)
	}
	path, err := filepath.EvalSymlinks(a.l.egressProgram())
	if err != nil {
		return nil, missing(err)
	}
	if !a.l.privileged {
		bind.Source.Path = path
		return bind, nil
	}
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, missing(err)
	}
	defer dir.Close()
	m, err := mounts.CloneDetached(dir, filepath.Base(path), bind.Attr, nil, false)
	if err != nil {
		return nil, missing(err)
	}
	bind.Source.Mount = a.keep(m)
	return bind, nil
}

// endEgress waits until the program of a launch that failed is gone: its Worker's
// PID 1 is, so its own ends it.
func (a *attempt) endEgress() {
	if a.egress != nil {
		_ = a.egress.Kill()
		<-a.egress.Done()
		a.egress.Close()
	}
}

// egressChecks say whether Workers can have an allowlist, and how their programs get
// through it.
func (l *Local) egressChecks() []Check {
	proxy := Check{Name: "egress", State: "ok", Message: "allowlists: by HTTP and SOCKS proxy"}
	open := Check{Name: "egress_transparent", State: "ok", Message: fmt.Sprintf("allowlists of up to %d rules under the names themselves, for programs that know of no proxy", egress.MaxSockets-3)}
	because := func(why, fix string) []Check {
		for _, c := range []*Check{&proxy, &open} {
			c.State, c.Message, c.Fix = "degraded", "no network by an allowlist: "+why, fix
		}
		return []Check{proxy, open}
	}
	if err := runnable(l.egressProgram()); err != nil {
		return because("yoi-egress: "+err.Error(), "install yoi-egress beside the other programs, or name it by YOI_EGRESS")
	}
	if c := userNamespaceCheck(); c.State != "ok" {
		return because(c.Message, c.Fix)
	}
	if fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return because("the kernel has no IPv4", "a kernel with CONFIG_INET")
	} else {
		unix.Close(fd)
	}
	host, err := l.hostRoot()
	if err != nil {
		return because("the host's /etc cannot be read", "")
	}
	if !bytes.Contains(host.file("/etc/resolv.conf"), []byte("nameserver")) {
		// Whoever needs no names lacks nothing.
		proxy.Message, proxy.Fix = proxy.Message+"; addresses and /etc/hosts only: /etc/resolv.conf names no server", "name one there, or by network.resolvers in config.toml"
	}
	return []Check{proxy, open}
}

// runnable tells why a program could not be started, without its path: the answer
// goes to whoever asks.
func runnable(path string) error {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errors.New("it is not there")
	case err != nil:
		return errors.New("it cannot be looked at")
	case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
		return errors.New("it is no executable file")
	}
	return nil
}

func (l *Local) egressProgram() string {
	if l.egressProg != "" {
		return l.egressProg
	}
	return egress.Program()
}

func (r *EgressRequest) validate() error {
	if r == nil {
		return nil
	}
	if r.Network.Mode != policy.NetworkAllowlist {
		return policy.Errorf(policy.CodeBadRequest, opEgress, "only an allowlist needs a proxy")
	}
	if err := (policy.SandboxPolicy{Network: r.Network}).Validate(); err != nil {
		return err
	}
	if err := policy.ValidateResolvers(r.Resolvers); err != nil {
		return err
	}
	if len(r.Roots) > maxRoots {
		return policy.Errorf(policy.CodeBadRequest, opEgress, "the certificate authorities are larger than %d bytes", maxRoots)
	}
	for _, s := range r.Secrets {
		if s.As != policy.SecretHTTPHeader {
			return policy.Errorf(policy.CodeBadRequest, opEgress, "only headers are the proxy's")
		}
	}
	if err := policy.ValidateSecrets(r.Secrets, policy.NetworkAllowlist); err != nil {
		return err
	}
	_, err := egress.Sockets(r.Network, r.Secrets)
	return err
}
