-- A whole ledger as it is stored, for code that changes its rule or shows it.
--
-- KEYS as in header.lua; ARGV[i] says which of them rule i's ledger is in. The answer: meta data (nil if there is no
-- such ledger), the server's time as a number, then of each rule what is stored of it (nil: nothing), its two lists
-- of runs, how many permits were abandoned (nil: none), and the book of its leases (nil: none).

local time = redis.call('TIME')
local answer = {redis.call('HGET', KEYS[1], 'm'), struct.pack('<d', time[1] * 1000000 + time[2])}
for i = 1, #ARGV do
  local at = KEYS[tonumber(ARGV[i])]
  answer[#answer + 1] = redis.call('HGET', at, 's' .. i)
  answer[#answer + 1] = table.concat(redis.call('LRANGE', at .. ':c' .. i, 0, -1))
  answer[#answer + 1] = table.concat(redis.call('LRANGE', at .. ':o' .. i, 0, -1))
  answer[#answer + 1] = redis.call('HGET', at, 'a' .. i)
  answer[#answer + 1] = redis.call('HGET', at .. ':l' .. i, 'b')
end
return answer
