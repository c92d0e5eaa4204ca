package cow

import (
	"bytes"
	"encoding/binary"
)

// direntHeader is the size of struct linux_dirent64 before its name:
// d_ino 8, d_off 8, d_reclen 2, d_type 1 (getdents64(2)).
const direntHeader = 19

// nextDirent cuts the first entry off b. name ends with its NUL and aliases b.
// ok is false at the end and for bytes that no kernel writes: an entry is then
// not guessed at, because a wrong name would be unlinked.
func nextDirent(b []byte) (name []byte, typ byte, rest []byte, ok bool) {
	if len(b) <= direntHeader {
		return nil, 0, nil, false
	}
	reclen := int(binary.NativeEndian.Uint16(b[16:18]))
	if reclen <= direntHeader || reclen > len(b) {
		return nil, 0, nil, false
	}
	name = b[direntHeader:reclen]
	nul := bytes.IndexByte(name, 0)
	if nul <= 0 || bytes.IndexByte(name[:nul], '/') >= 0 {
		return nil, 0, nil, false
	}
	return name[: nul+1 : nul+1], b[18], b[reclen:], true
}

// isDot reports "." and "..", given with their NUL.
func isDot(name []byte) bool {
	return name[0] == '.' && (len(name) == 2 || (len(name) == 3 && name[1] == '.'))
}
