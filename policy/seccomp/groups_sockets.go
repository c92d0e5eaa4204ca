package seccomp

var socketCalls = Group{
	Name: "using sockets",
	Why:  "What to do with a socket once there is one. Where it can reach is the network namespace's business.",
	Rules: allow(`bind connect listen accept accept4 getsockname getpeername shutdown
		sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg setsockopt getsockopt`),
}

// Address families, socket(2).
const (
	afUnix    = 1
	afInet    = 2
	afInet6   = 10
	afNetlink = 16
)

var socketFamilies = Group{
	Name: "making sockets",
	Why: "AF_UNIX, AF_INET, AF_INET6, and of AF_NETLINK only protocol 0 (ROUTE: getifaddrs, Go's net.Interfaces). " +
		"All others load seldom-tried kernel modules: AF_ALG (CVE-2026-31431), AF_VSOCK (which leaves every network namespace), AF_PACKET, AF_KEY, AF_RDS …",
	Rules: append(decide("socket", choice{
		arg: 0, mask: low32,
		branches: []branch{
			{values: []uint64{afUnix, afInet, afInet6}, action: Allow},
			{values: []uint64{afNetlink}, then: &choice{
				arg: 2, mask: low32,
				branches:  []branch{{values: []uint64{0}, action: Allow}},
				otherwise: Errno(ePROTONOSUPPORT),
			}},
		},
		otherwise: Errno(eAFNOSUPPORT),
	}), unixPair()...),
}

var unixSocketsOnly = Group{
	Name: "making AF_UNIX sockets",
	Why:  "No network protocol at all, not even over loopback.",
	Rules: append(decide("socket", choice{
		arg: 0, mask: low32,
		branches:  []branch{{values: []uint64{afUnix}, action: Allow}},
		otherwise: Errno(eAFNOSUPPORT),
	}), unixPair()...),
}

func unixPair() []Rule {
	return decide("socketpair", choice{
		arg: 0, mask: low32,
		branches:  []branch{{values: []uint64{afUnix}, action: Allow}},
		otherwise: Errno(eAFNOSUPPORT),
	})
}

var sysvAndMqueue = Group{
	Name: "System V IPC and message queues",
	Why:  "Databases and test suites use them; the ipc namespace is the Worker's own.",
	Rules: allow(`shmget shmat shmdt shmctl semget semop semtimedop semctl
		msgget msgsnd msgrcv msgctl
		mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr`),
}
