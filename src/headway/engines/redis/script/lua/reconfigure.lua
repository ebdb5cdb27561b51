-- Write a ledger back as it is under another rule, unless another client changed it in between.
--
-- KEYS as in header.lua. ARGV[1] the meta data as it was read, ARGV[2] as it shall be, ARGV[3] the limits as text,
-- ARGV[4] the least time to live in milliseconds; then of each rule: which key, what to store (empty: leave it
-- alone), its two lists of runs, and how many permits were found to be abandoned. Answers 1 if it was written.

local call, RUN, CHUNK = redis.call, 16, 256

if call('HGET', KEYS[1], 'm') ~= ARGV[1] then
  return 0
end
call('HSET', KEYS[1], 'm', ARGV[2], 'l', ARGV[3])

-- Clients rely on the ledger for as long as they were told, and no list may be gone while its ledger is there.
local ms = math.max(tonumber(ARGV[4]), call('PTTL', KEYS[1]))
call('PEXPIRE', KEYS[1], ms)
for _, part in ipairs({':q', ':w', ':h', ':b'}) do
  call('PEXPIRE', KEYS[1] .. part, ms)
end

local function write(list, runs)
  call('DEL', list)
  for from = 1, #runs, RUN * CHUNK do
    local some = {}
    for at = from, math.min(from + RUN * CHUNK, #runs + 1) - 1, RUN do
      some[#some + 1] = string.sub(runs, at, at + RUN - 1)
    end
    call('RPUSH', list, unpack(some))
  end
  call('PEXPIRE', list, ms)
end

for i = 5, #ARGV, 5 do
  local key, rule = KEYS[tonumber(ARGV[i])], i / 5
  if ARGV[i + 1] ~= '' then
    call('HSET', key, 's' .. rule, ARGV[i + 1])
    call('PEXPIRE', key, ms)
    write(key .. ':c' .. rule, ARGV[i + 2])
    write(key .. ':o' .. rule, ARGV[i + 3])
    call('PEXPIRE', key .. ':l' .. rule, ms)
    call('PEXPIRE', key .. ':e' .. rule, ms)
    if ARGV[i + 4] ~= '0' then
      call('HINCRBY', key, 'a' .. rule, ARGV[i + 4])
    end
  end
end
return 1
