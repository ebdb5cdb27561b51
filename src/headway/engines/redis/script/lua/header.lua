-- One round trip: all requests of one process to one limiter's ledgers for one key, decided in one step.
--
-- KEYS[1]  the root: a hash with the meta data, the last reply to each stream, and (where the limiter has no metrics)
--          the ledgers: s<i>, and a<i>, how many of its permits were abandoned; KEYS[2..]: one hash per metric's
--          ledger. All share the root's hash tag, as do the keys beside them: <key>:c<i> and :o<i> (lists: runs of a
--          window), <key>:l<i> and :e<i> (leases: lease.lua), and the queue's <root>:q, :w, :h, :b and :g (queue.lua).
--          p<process> in the root: when the process sent its last command, and its lease. l is the limits as text, n
--          its shape (open_ledgers.lua), b how many of the metrics' ledgers lend (lease.lua).
-- ARGV[1]  numbers: time (0: the server's), earliest and latest time expected, number of this command in its stream
--          (below 0: only if the one before it was applied),
--          least sequence number expected, lease, generation of the limits, number of rules, sharded channels or not
-- ARGV[2]  the stream: 12 characters for the process, 4 for which of its streams
-- ARGV[3]  the epoch in which the client knows this ledger; empty if it does not, or if the ledger may have expired
-- ARGV[4]  the identity of the server, as the client found it on this connection
-- ARGV[5]  the rules: 9 numbers each (kind, which key, capacity, and six of its own)
-- ARGV[6]  the limits as text, for people
-- ARGV[7]  of a key's ledger: the root of the limiter's own, whose pause holds all keys up; in a cluster, where that is
--          elsewhere, for how long they are still held up, if they are
-- ARGV[8..]  commands: numbers, the first one says which
--
-- The answer is packed numbers: status, time, sequence number, time to live, time left in quarantine (below 0: it was
-- cut short, and for so long the ledger is in doubt) and in a pause, sum of all shifts, how many wait, the epoch (24
-- characters), then what each command has to say. With any status but OK nothing has changed.

local OK, STALE, LOST, MOVED, CLOCK, MISMATCH, RECONFIGURE, EDGES, VERSION, SKIPPED = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
local LEASED = 10
local ACQUIRE, RELEASE, WITHDRAW, POLL, RENEW, PEEK = 1, 2, 3, 4, 5, 6
local PAUSE, RESET, QUARANTINE, TRUST, ECHO, SYNC = 7, 8, 9, 10, 11, 12
-- The format of what is stored: 1, or 2 while clients hold tokens of one of the ledgers (lease.lua).
local FORMAT, LENDING, GRACE, RECORD, HELD = 1, 2, 60000000, 72, 4

local root, stream, epoch_seen, ident = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local at, lo, hi, number, seq_seen, lease, generation, count, sharded = unpack_from('<ddddddddd', ARGV[1])
local follows = number < 0
number = math.abs(number)
local now = at
if at == 0 then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local stored
if count == 1 then
  stored = call('HMGET', root, 'm', 'c' .. stream, 's1')
else
  local asked = {'m', 'c' .. stream}
  for i = 1, count do
    asked[i + 2] = 's' .. i
  end
  stored = call('HMGET', root, unpack(asked))
end

-- A command is applied once: its stream's last reply is kept, and a late copy of an older command is ignored.
local applied = 0
if stored[2] then
  applied = unpack_from('<d', stored[2])
  if applied == number then
    return string.sub(stored[2], 17)
  elseif applied > number then
    return pack('<d', STALE)
  end
end
-- Releases are not waited for. If one is refused, so are those behind it: a later number would hide that it was.
if follows and applied ~= number - 1 then
  return pack('<dddddddd', SKIPPED, now, 0, 0, 0, 0, 0, 0) .. string.rep('\0', 24)
end

-- The lists of a ledger live as long as it does; one that was made just now has no time to live yet.
local function keep_lists(ledger, ticks, all)
  for _, runs in ipairs(ledger.lists) do
    if all or runs.fresh then
      call('PEXPIRE', runs.key, math.ceil(ticks / 1000) + 1)
    end
  end
end

local seq, last, quarantined, paused, expires, waiting, shift, governed, born = 0, 0, 0, 0, 0, 0, 0, generation, 0
local format, names = FORMAT, nil
if stored[1] then
  format, seq, last, quarantined, paused, expires, waiting, shift, governed, born =
    unpack_from('<dddddddddd', stored[1])
  names = string.sub(stored[1], 81) -- the epoch and the server
end

-- The queue's keys live as long as the root.
local function keep_queue(ms)
  for _, part in ipairs({':q', ':w', ':h', ':b'}) do
    call('PEXPIRE', root .. part, ms)
  end
end

-- Let the root live for so long; now and then, forget streams of processes that are gone.
local function prolong(ticks)
  local ms = math.ceil(ticks / 1000) + 1
  call('PEXPIRE', root, ms)
  if waiting > 0 then
    keep_queue(ms)
  end
  if call('HLEN', root) > 64 then
    -- Some of them each time: all keys of a limiter with metrics share a root, and there may be a hundred thousand.
    -- More than have come since the last time, so that they do not gather; z is where to go on.
    local found = call('HSCAN', root, call('HGET', root, 'z') or '0', 'COUNT', 2500)
    call('HSET', root, 'z', found[1])
    for i = 1, #found[2], 2 do
      local field, value = found[2][i], found[2][i + 1]
      local what = string.sub(field, 1, 1)
      if what == 'c' or what == 'p' then
        local when = unpack_from('<d', value, what == 'c' and 9 or 1)
        local of = what == 'p' and select(2, unpack_from('<dd', value)) or 0
        if when < now - math.max(5 * GRACE, of) then
          call('HDEL', root, field)
        end
      end
    end
  end
end

-- Whether it is time to do so: half of the grace is used up; or a ledger that lives until a certain day was used often.
local function due_for_renewal(reset)
  return expires < now + reset + GRACE / 2 or seq % 1024 == 0
end

-- The replies so far, how far we have come (how many times, of a command that is to be done several times), and the
-- ledger if there is only one.
local said, from, done, only = {}, 8, 0, nil

-- Whether the queue was made just now, and has no time to live yet.
local fresh_queue = false

-- Messages to processes, by process: each is sent as one.
local mail = {}

-- Until when the whole limiter is paused.
local halted = 0
if ARGV[7] ~= '' and sharded == 1 then
  halted = now + unpack_from('<d', ARGV[7])
elseif ARGV[7] ~= '' then
  local limiter = call('HGET', ARGV[7], 'm')
  if limiter then
    local _, _, _, _, until_when = unpack_from('<ddddd', limiter)
    halted = until_when
  end
end
