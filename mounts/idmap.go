package mounts

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// IDMap is one line of a user namespace's uid_map or gid_map
// (user_namespaces(7)): Count ids from Inside on are the ids from Outside on.
type IDMap struct{ Inside, Outside, Count uint32 }

// WriteIDMaps writes the maps of the process whose directory in /proc is given.
// Without CAP_SETGID over the parent namespace the gid map is only accepted
// when setgroups is denied first: dropping a group could otherwise give access
// (CVE-2014-8989). So it is denied where the map is of one id only.
func WriteIDMaps(proc string, uids, gids []IDMap) error {
	if len(gids) == 1 && gids[0].Count == 1 {
		if err := WriteProc(proc+"/setgroups", "deny"); err != nil {
			return mapsFailed("setgroups", err)
		}
	}
	if err := WriteProc(proc+"/uid_map", mapText(uids)); err != nil {
		return mapsFailed("uid_map", err)
	}
	if err := WriteProc(proc+"/gid_map", mapText(gids)); err != nil {
		return mapsFailed("gid_map", err)
	}
	return nil
}

func mapText(ms []IDMap) string {
	var b []byte
	for _, m := range ms {
		b = strconv.AppendUint(b, uint64(m.Inside), 10)
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(m.Outside), 10)
		b = append(b, ' ')
		b = strconv.AppendUint(b, uint64(m.Count), 10)
		b = append(b, '\n')
	}
	return string(b)
}

// WriteProc writes all of text in one write(2), as files of /proc demand.
func WriteProc(name, text string) error {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	if n, err := unix.Write(fd, []byte(text)); err != nil || n != len(text) {
		if err == nil {
			err = unix.EIO
		}
		return &os.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func mapsFailed(file string, err error) error {
	d := policy.Errorf(policy.CodeNamespacesUnavailable, "mounts.idmap", "the user namespace's %s could not be written", file).
		With("file", file).Because(err)
	if errors.Is(err, unix.EPERM) {
		return d.WithHint("An id range needs CAP_SETUID and CAP_SETGID in the caller's user namespace.")
	}
	return d
}
