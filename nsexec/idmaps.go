package nsexec

import (
	"os"
	"strconv"

	"yoi.dev/yoi-runtime/mounts"
)

// writeMaps writes the child's id maps from outside, which is the only side
// that may map a range (user_namespaces(7)). The child makes its other
// namespaces meanwhile.
func (l *launching) writeMaps() error {
	s := l.spec
	uids, gids := s.UIDMap, s.GIDMap
	if uids == nil {
		uids = []IDMap{{Inside: s.uid(), Outside: uint32(os.Geteuid()), Count: 1}}
		gids = []IDMap{{Inside: s.gid(), Outside: uint32(os.Getegid()), Count: 1}}
	}
	return mounts.WriteIDMaps("/proc/"+strconv.Itoa(l.child.Pid), uids, gids)
}
