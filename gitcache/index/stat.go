package index

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Stat is the stat data of an entry, truncated to 32 bits as git does.
type Stat struct {
	CtimeSec, CtimeNsec uint32
	MtimeSec, MtimeNsec uint32
	Dev, Ino            uint32
	UID, GID            uint32
	Size                uint32
}

// FromStatx converts what statx(2) returned.
func FromStatx(st *unix.Statx_t) Stat {
	return Stat{
		CtimeSec: uint32(st.Ctime.Sec), CtimeNsec: st.Ctime.Nsec,
		MtimeSec: uint32(st.Mtime.Sec), MtimeNsec: st.Mtime.Nsec,
		Dev: uint32(unix.Mkdev(st.Dev_major, st.Dev_minor)), Ino: uint32(st.Ino),
		UID: st.Uid, GID: st.Gid,
		Size: sizeWord(st.Size),
	}
}

// fromStat converts what lstat(2) returned.
func fromStat(st *unix.Stat_t) Stat {
	return Stat{
		CtimeSec: uint32(st.Ctim.Sec), CtimeNsec: uint32(st.Ctim.Nsec),
		MtimeSec: uint32(st.Mtim.Sec), MtimeNsec: uint32(st.Mtim.Nsec),
		Dev: uint32(st.Dev), Ino: uint32(st.Ino),
		UID: st.Uid, GID: st.Gid,
		Size: sizeWord(uint64(st.Size)),
	}
}

// sizeWord is git's munge_st_size rule: a size that is a non-zero multiple of
// 4 GiB must not become 0, which means "racily clean, look at the content".
// git before 2.43 stores 0 all the same and only re-reads such a file.
func sizeWord(size uint64) uint32 {
	if uint32(size) == 0 && size != 0 {
		return 0x80000000
	}
	return uint32(size)
}

func getStat(b []byte) Stat {
	u := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	return Stat{CtimeSec: u(0), CtimeNsec: u(1), MtimeSec: u(2), MtimeNsec: u(3), Dev: u(4), Ino: u(5), UID: u(7), GID: u(8), Size: u(9)}
}

func putStat(b []byte, s Stat) {
	put := func(i int, v uint32) { binary.BigEndian.PutUint32(b[4*i:], v) }
	put(0, s.CtimeSec)
	put(1, s.CtimeNsec)
	put(2, s.MtimeSec)
	put(3, s.MtimeNsec)
	put(4, s.Dev)
	put(5, s.Ino)
	put(7, s.UID)
	put(8, s.GID)
	put(9, s.Size)
}
