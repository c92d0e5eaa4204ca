package mounts

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/replay"
	"yoi.dev/yoi-runtime/policy"
)

const opUserNS = "mounts.userns"

// UserNS makes a user namespace with these maps and returns it, for idmapped
// mounts. No process stays in it. Callers cache it: it costs a short process.
// The maps need CAP_SETUID and CAP_SETGID, except a single line of one id that
// is the caller's own.
func UserNS(uidMaps, gidMaps []IDMap) (*os.File, error) {
	if !replay.Supported {
		return nil, policy.Errorf(policy.CodeUnsupported, opUserNS, "user namespaces cannot be made on this architecture")
	}
	if len(uidMaps) == 0 || len(gidMaps) == 0 {
		return nil, policy.Errorf(policy.CodePolicyInvalid, opUserNS, "an id map is empty")
	}
	// A child that only waits for the pipe's end, which our death is too.
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, explain(opUserNS, "pipe2", err)
	}
	p := replay.New()
	defer p.Release()
	// It holds nothing else open: two such children with each other's pipes would outlive
	// us, and with them every lock of ours.
	if pipe[0] > 0 {
		p.Add(unix.SYS_CLOSE_RANGE, replay.N(0), replay.N(pipe[0]-1), replay.N(0))
	}
	p.Add(unix.SYS_CLOSE_RANGE, replay.N(pipe[0]+1), replay.N(^uint32(0)), replay.N(0))
	p.Add(unix.SYS_READ, replay.N(pipe[0]), p.Space(1), replay.N(1))
	p.Add(unix.SYS_EXIT_GROUP, replay.N(0))
	child, err := p.Start(unix.CLONE_NEWUSER, -1)
	unix.Close(pipe[0])
	if err != nil {
		unix.Close(pipe[1])
		if errors.Is(err, unix.ENOSYS) {
			return nil, explain(opUserNS, "clone3", err)
		}
		return nil, policy.Errorf(policy.CodeNamespacesUnavailable, opUserNS, "a user namespace could not be made").Because(err)
	}
	ns, err := mapAndOpen(child.Pid, uidMaps, gidMaps)
	unix.Close(pipe[1])
	child.Wait()
	for unix.Waitid(unix.P_PIDFD, child.Pidfd, nil, unix.WEXITED|unix.WALL, nil) == unix.EINTR {
	}
	unix.Close(child.Pidfd)
	return ns, err
}

func mapAndOpen(pid int, uidMaps, gidMaps []IDMap) (*os.File, error) {
	proc := "/proc/" + strconv.Itoa(pid)
	if err := WriteIDMaps(proc, uidMaps, gidMaps); err != nil {
		return nil, err
	}
	ns, err := os.OpenFile(proc+"/ns/user", os.O_RDONLY, 0)
	if err != nil {
		return nil, policy.Errorf(policy.CodeNamespacesUnavailable, opUserNS, "a user namespace could not be opened").Because(err)
	}
	return ns, nil
}
