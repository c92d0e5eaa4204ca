package seccomp

import (
	"encoding/binary"
	"fmt"
)

// Classic BPF, as far as a filter needs it: <linux/bpf_common.h>.
const (
	load = 0x20 // BPF_LD | BPF_W | BPF_ABS
	and  = 0x54
	ja   = 0x05
	jeq  = 0x15
	jge  = 0x35
	ret  = 0x06
)

// Offsets in struct seccomp_data. An argument's low half is its first on
// little-endian machines, the only ones we build for.
const (
	offsetNr   = 0
	offsetArch = 4
	offsetArgs = 16
)

// label is an instruction's distance from the program's end: jumps go forward
// only, so the program is written from its end.
type label int

type instruction struct {
	code    uint16
	yes, no label // of a test; yes alone of ja
	k       uint32
}

type assembler struct {
	reversed []instruction
	answers  map[Action]label // each is written once
}

func (a *assembler) emit(in instruction) label {
	a.reversed = append(a.reversed, in)
	return label(len(a.reversed) - 1)
}

func (a *assembler) ret(action Action) label {
	at, ok := a.answers[action]
	if !ok {
		at = a.emit(instruction{code: ret, k: uint32(action)})
		a.answers[action] = at
	}
	return at
}

// then puts in before next, with a jump between them if they are apart.
func (a *assembler) then(in instruction, next label) label {
	if int(next) != len(a.reversed)-1 {
		a.emit(instruction{code: ja, yes: next})
	}
	return a.emit(in)
}

// test jumps by the accumulator. A conditional jump reaches 255 instructions;
// beyond, it jumps to a jump.
func (a *assembler) test(code uint16, k uint32, yes, no label) label {
	if yes == no {
		return yes
	}
	const reach = 255
	// Two, as the second jump moves the first one away.
	if len(a.reversed)+2-int(no) > reach {
		no = a.emit(instruction{code: ja, yes: no})
	}
	if len(a.reversed)+2-int(yes) > reach {
		yes = a.emit(instruction{code: ja, yes: yes})
	}
	return a.emit(instruction{code: code, yes: yes, no: no, k: k})
}

func (a *assembler) encode() ([]byte, error) {
	var out []byte
	for at := len(a.reversed) - 1; at >= 0; at-- {
		in := a.reversed[at]
		var yes, no, k int
		k = int(in.k)
		switch in.code {
		case ja:
			k = at - 1 - int(in.yes)
		case jeq, jge:
			yes, no = at-1-int(in.yes), at-1-int(in.no)
		}
		if yes < 0 || no < 0 || k < 0 || yes > 255 || no > 255 {
			return nil, fmt.Errorf("a jump of %d or %d", yes, no)
		}
		out = binary.NativeEndian.AppendUint16(out, in.code)
		out = append(out, byte(yes), byte(no))
		out = binary.NativeEndian.AppendUint32(out, uint32(k))
	}
	return out, nil
}
