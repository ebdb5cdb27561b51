-- Write a ledger back as it is under another rule, unless somebody was there in between.
--
-- ARGV[1] the meta data as it was read, ARGV[2] as it shall be, ARGV[3] the limits as text; then of each rule: which key,
-- what to store, its two lists of runs, and the time to live in milliseconds.

if redis.call('HGET', KEYS[1], 'm') ~= ARGV[1] then
  return 0
end
redis.call('HSET', KEYS[1], 'm', ARGV[2], 'l', ARGV[3])
local rule = 0
for i = 4, #ARGV, 5 do
  rule = rule + 1
  local key = KEYS[tonumber(ARGV[i])]
  redis.call('HSET', key, 's' .. rule, ARGV[i + 1])
  for j = 2, 3 do
    local list = key .. (j == 2 and ':c' or ':o') .. rule
    redis.call('DEL', list)
    for from = 1, #ARGV[i + j], 16 do
      redis.call('RPUSH', list, string.sub(ARGV[i + j], from, from + 15))
    end
    redis.call('PEXPIRE', list, ARGV[i + 4])
  end
  redis.call('PEXPIRE', key, ARGV[i + 4])
end
return 1
