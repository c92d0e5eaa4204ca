// Package cbpf runs a seccomp filter outside of the kernel: on made-up calls, so
// that tests can ask for the verdict on any architecture, number and arguments,
// and on those of which a Worker under audit is notified. It knows only the instructions that the kernel allows
// in a seccomp filter (seccomp_check_filter in kernel/seccomp.c).
package cbpf

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Data is struct seccomp_data.
type Data struct {
	Nr   int32
	Arch uint32
	IP   uint64
	Args [6]uint64
}

type instruction struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

// Program is a decoded filter.
type Program []instruction

// Decode reads an array of struct sock_filter.
func Decode(b []byte) (Program, error) {
	const size, most = 8, 4096 // BPF_MAXINSNS
	if len(b) == 0 || len(b)%size != 0 || len(b)/size > most {
		return nil, fmt.Errorf("a filter of %d bytes", len(b))
	}
	p := make(Program, 0, len(b)/size)
	for ; len(b) > 0; b = b[size:] {
		p = append(p, instruction{binary.NativeEndian.Uint16(b), b[2], b[3], binary.NativeEndian.Uint32(b[4:])})
	}
	return p, nil
}

const (
	ldAbs = 0x20 // BPF_LD | BPF_W | BPF_ABS
	and   = 0x54 // BPF_ALU | BPF_AND | BPF_K
	ja    = 0x05
	jeq   = 0x15
	jgt   = 0x25
	jge   = 0x35
	jset  = 0x45
	ret   = 0x06
)

// Run returns the filter's verdict on d, and how many instructions it took.
func (p Program) Run(d Data) (verdict uint32, steps int, err error) {
	var a uint32
	for pc := 0; pc < len(p); pc++ {
		steps++
		in := p[pc]
		jump := false
		switch in.code {
		case ldAbs:
			if a, err = d.word(in.k); err != nil {
				return 0, steps, err
			}
			continue
		case and:
			a &= in.k
			continue
		case ja:
			pc += int(in.k)
			continue
		case ret:
			return in.k, steps, nil
		case jeq:
			jump = a == in.k
		case jgt:
			jump = a > in.k
		case jge:
			jump = a >= in.k
		case jset:
			jump = a&in.k != 0
		default:
			return 0, steps, fmt.Errorf("instruction %#x at %d", in.code, pc)
		}
		if jump {
			pc += int(in.jt)
		} else {
			pc += int(in.jf)
		}
	}
	return 0, steps, errors.New("the filter ends without a verdict")
}

// word is the 32-bit load at offset k of struct seccomp_data.
func (d Data) word(k uint32) (uint32, error) {
	half := func(v uint64, k uint32) uint32 {
		var b [8]byte
		binary.NativeEndian.PutUint64(b[:], v)
		return binary.NativeEndian.Uint32(b[k%8:])
	}
	switch {
	case k%4 != 0 || k >= 64:
		return 0, fmt.Errorf("load at offset %d", k)
	case k == 0:
		return uint32(d.Nr), nil
	case k == 4:
		return d.Arch, nil
	case k < 16:
		return half(d.IP, k-8), nil
	}
	return half(d.Args[(k-16)/8], k-16), nil
}
